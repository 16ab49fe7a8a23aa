//! What the columns of the report mean.

pub const LEGEND: &str = "\
    Classes: **N**, a fault of the network, a server or a process: exclusion must hold strictly. \
    **P**, a client that is paused: as N, and what it does late must be \
    refused by its fence. **T**, an assumption about time or data that is broken at the server \
    (its clock jumps, its data is lost or taken away): two may hold \
    then, so an overlap is no reason for red; that the loss is noticed in time, that no late write \
    is accepted behind a newer fence, and that no unlock says Ok after \
    another grant, is what is judged.\n\n\
    | column | what it means |\n|---|---|\n\
    | holds | grants in the whole row, by all threads of all processes |\n\
    | holds under the fault | grants while the fault lasted, without the time in which it let \
    nobody be granted anything |\n\
    | idle | the share of the slices of 250 ms under the fault and between its windows in which \
    nobody was granted anything, again without that time; from 20 % on the row has shown too \
    little |\n\
    | faults | how often the fault was injected |\n\
    | unknown | calls that ended with `Unknown` |\n\
    | overlaps | holds that were valid at the same time as those of other owners, without room for \
    both |\n\
    | lost updates | updates of a plain counter that were lost between two holds that were valid \
    before and after their write |\n\
    | stale offered / accepted | writes of holders that had been overtaken: offered to the fenced \
    resource, and accepted by it |\n\
    | fence regressions | holds with a fence that is not above those of all earlier holds that \
    could not have been beside them |\n\
    | longest stuck | the longest time in which a key had room for all its waiters, and one of \
    them got nothing |\n\
    | longest orphan | the longest time in which the server had a token that nobody alive knew of \
    |\n\
    | longest wait | from the call to the grant; long holds, of up to three leases, have keys of \
    their own, and only on the others it may not be longer than 30 s |\n\
    | acquire p50 / p99 | the same for the keys of short holds |\n\
    | recovery | until the rate of grants was back at 80 % of what it was before, as the mean of a \
    second |\n\
    | threads, descriptors | of all client processes, before their clients were made and after \
    they were closed |\n\
    | connections | at the server, before and after |\n\
    | keys | locks before / locks + queue keys after |\n\
    | verdict | **red**: a promise was broken, and no load of the machine excuses that. A row in \
    which only something took too long (**late**), or which has shown too little to be judged \
    (**inconclusive**), runs again alone, twice at most: with the same seed, and with the next \
    one. It is green if one of these tries is, and red otherwise |\n\n\
    A dash: the row has no such number. Rows 50 and 61 need no holds: in the first there must be \
    none while the nodes are away, and the second counts calls of the rate \
    limiter.\n";
