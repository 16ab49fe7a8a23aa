/* A room with shares: readers and writers, or permits, with one queue.
 *
 * Rules: R27 (nobody who fits overtakes a waiter that is alive and listens; nobody waits for one that is not). R4,
 * R5, R7, R10, R15, R20 again, for several members.
 *
 * The room. The key is a set. Its members are leases: each has a share, and its own end by the server's clock
 * (`ends`). A member whose end has passed stays in the set until a script sweeps it. A share fits if the shares of
 * the members that are left after the sweep and its own are at most PLACES. A reader or a permit takes 1, a writer
 * takes all. What is written here of a writer holds for any share that does not fit beside a smaller one.
 *
 * Steps and scripts. s_acquire is an attempt, s_release the unlock, s_withdraw the cleaner's, s_extend a renewal;
 * each is one step. `serve` walks the queue in its order: it takes out a waiter whose entry has ended, passes over
 * one that does not listen, makes members of those that listen and fit, with the first lease, and is stopped by the
 * first that listens and does not fit. At the place of the asker it ends, too, if the asker fits; else the asker is a
 * waiter like any other. An entry may end at any time: the waiter is dead, or frozen, or never asks again. An attempt
 * or an extend that got no answer in time runs
 * at any later time, also at once, or never (`late`). A release that got no answer is a withdrawal by the cleaner.
 * A published message is received at any later time, or never (`message`); a later one to the same waiter takes its
 * place. An inbox is away while it is being reconnected, which may happen at any time, and again.
 *
 * Time. As in queue.pml: countdowns, moved together, and no step is urgent. An answered request asks, runs and gets
 * its answer in one step. `first` is the rest of the first lease, counted from the last attempt whose refusal was
 * received.
 *
 * Sizes: two readers and a writer, one acquisition and 2 attempts each. A reader and the writer have every fault,
 * and the writer may die; the other reader is always answered. 2 requests late at any one time; a lease of 2 ticks,
 * a first lease of 1. Enough: each race is between a member, a waiter that does not fit, and one behind it. A
 * process that comes back comes with another token, and so as another process.
 * -DWIDE: two readers and two writers; one writer has every fault, one reader may die; 1 request late. For queues of
 * three, and for a place in the middle of them.
 * -DPERMITS: a room for 3, and shares of 1, 1, 2 and 3, so that some fit beside one, but not beside two; three may
 * die, two inboxes go away; every request is answered. For deaths and inboxes at every place.
 *
 * Left out, because queue.pml has it: several threads of a process and the hand-off between them, bare attempts, a
 * token that is used again, a failover (here a waiter that does not listen receives nothing new), unanswered attempts
 * that nobody withdraws, validity that counts from the wake-up. Because single.pml has it: a late copy that makes an
 * end earlier (all whole leases are equal here). Not modelled at all: fences, drift, hints, exchanges of
 * tokens, callers that give different sizes of the room, the limit of grants per script (the others are served by
 * the next question of any of them).
 * Here, and not in queue.pml: shares, several members with their own ends, members that have expired beside others
 * that have not, late extends, the order of the queue, several grants in one script, and what a waiter that does not
 * fit, has ended, or does not listen means for those behind it.
 *
 * Properties:
 * OVERLAP: the shares of processes inside and valid at the same time exceed the room.
 * ROOM: at the server, the shares of the members that have not expired exceed the room.
 * OVERTAKEN: a process becomes a member while a waiter before it in the queue is alive and listens. Before one
 *     without a place are all.
 * BLOCKED: after a script that serves: the first waiter that is alive and listens fits, and was not served.
 * ORPHAN: a member for an acquisition that has ended in a living process, and no cleaner has it.
 *
 * BLOCKED does not speak of an extend, nor of an acquire that is refused because its asker does not fit: these serve
 * nobody, and may end with a first waiter that fits, because a member has expired before, or because a waiter has
 * died, gone away, or come back. Such a waiter is let in by its own next question, at most a pause later.
 *
 * Must fail, by which property, and by which interleaving (A and B read, W writes):
 * EXTEND_BY_KEY            ROOM      A's extend is late; A's lease runs out, and W takes the room; the extend finds
 *     the key, and A is a member beside W.
 * EXTEND_BY_PRESENCE       OVERTAKEN W's extend is late; B queues; W's lease runs out, and nobody has swept it; the
 *     extend finds W in the set, and W is a member again, before B.
 * EXPIRED_IS_MINE          OVERTAKEN W's first attempt runs, unseen; B queues; W's lease runs out; W's second
 *     attempt finds W in the set, and takes a whole lease, before B.
 * NO_SWEEP                 BLOCKED   W's lease runs out, and its share still counts: A's withdrawal does not serve B.
 * WHOLE_ROOM_ENDS_TOGETHER BLOCKED   A's end has passed, but B still reads, so A's share still counts: somebody who
 *     fits (here A, which asks again) is refused, and W's withdrawal does not serve it.
 * RELEASE_DELETES_KEY      OVERLAP   A and B are inside, W waits; B's release removes A, too, and W is granted.
 * SUM_OFF_BY_ONE           ROOM      W takes the room beside A.
 * FITS_ASKED_ONCE          ROOM      B's lease runs out, W is first in the queue; A asks and fits, its script serves
 *     W, and A takes its share beside W.
 * QUEUE_NOT_ASKED          OVERTAKEN B holds, W waits; A fits beside B, and takes its share before W.
 * STOP_IGNORED             OVERTAKEN the same; A asks the queue, but only looks whether it still fits.
 * SMALL_OVERTAKES          OVERTAKEN the same; the walk goes on behind W, and comes to A's turn.
 * BATCH_OF_ONE             BLOCKED   W holds, B and A wait; W's release serves only B.
 * DEAF_BLOCKS              BLOCKED   W holds, A and B wait; A's inbox goes away; W's release does not serve B.
 * SERVED_BEFORE_REMOVED    BLOCKED   W holds, B waits; W's share still counts while its release serves.
 * NOT_SERVED_ON_LEAVING    BLOCKED   A holds, W and B wait; W gives up, and B, which fits beside A, is not served.
 * NOT_SERVED_BY_ASKER      BLOCKED   W holds, B and A wait; W's lease runs out; B asks and takes its share, and A is
 *     not served.
 * STAYS_IN_THE_QUEUE       ORPHAN    B holds, W queues; B's lease runs out; W's next attempt is granted, but W stays
 *     in the queue: its own release serves W, which has gone.
 * GRANT_NOT_PASSED_ON      ORPHAN    W's attempt is granted, unseen; W gives up; its withdrawal only leaves the queue.
 * GRANT_WITHOUT_ATTEMPT    OVERLAP   W queues (attempt 1), is granted, and the message is late; the grant runs out, A
 *     takes its share; attempt 2 of W is refused; the message arrives, and W counts from attempt 2.
 */

#define OVERLAP   1
#define ROOM      2
#define OVERTAKEN 3
#define BLOCKED   4
#define ORPHAN    5
#ifdef ONLY
#define LOOKED_AT(property) (ONLY == (property))
#else
#define LOOKED_AT(property) 1
#endif

#define LEASE     2
#define FIRST     1
#define TRIES     2     /* attempts per process */
#if defined(WIDE) || defined(PERMITS)
#define N         4
#define LATES     1     /* at any one time */
#else
#define N         3
#define LATES     2
#endif
#define NOBODY    N

#ifdef PERMITS
#define PLACES    3
#define SHARE(p)  ((p) < 2 -> 1 : p)    /* 1, 1, 2, 3 */
#else
#define PLACES    2
#define SHARE(p)  ((p) < 2 -> 1 : 2)    /* readers, and writers */
#endif

/* Requests on the way, as bits: attempts 1 and 2, and an extend. */
#define BIT(a)    (1 << (a))
#define EXTEND    0

#define NOTHING   0     /* no answer */
#define YES       1
#define NO        2

/* the server */
byte ends[N];           /* the set: 0: no member; 1: a member that has expired; else the rest of its lease + 1 */
byte queue[N + 1] = NOBODY;     /* in order; NOBODY is the end */
byte known[N];          /* by waiter: the attempt that the queue knows; 0: not in the queue */
bool stopped;           /* serve, by a waiter that does not fit; false between the scripts */
byte w, next, at;       /* of the scripts; 0 between them */

/* the network */
byte late[N];           /* requests that may still run */
byte under_way;         /* how many */
byte message[N];        /* the attempt that a message names which was not received; 0: there is none */

/* the processes, and what they have in their hands: one acquisition each */
byte attempt[N];        /* the last one sent */
byte refused[N];        /* the last one whose refusal was received */
byte first[N], valid[N];
bool away[N];           /* its inbox is being reconnected */
bool dead[N];
bool ended[N];

/* the cleaners */
bool job[N];

#if N > 3
#define ALL(of, op) (of(0) op of(1) op of(2) op of(3))
#else
#define ALL(of, op) (of(0) op of(1) op of(2))
#endif

#define MEMBER(h)   (ends[h] > 1)
#define LISTENS(t)  (!dead[t] && !away[t])

/* What is in use: in truth, and as the scripts count it, which is right after sweep(). */
#define TAKES(h)    (ends[h] > 1 -> SHARE(h) : 0)
#define COUNTS(h)   (ends[h] > 0 -> SHARE(h) : 0)
#define IN_USE      ALL(TAKES, +)
#ifdef SUM_OFF_BY_ONE
#define FITS(t)     (ALL(COUNTS, +) + SHARE(t) <= PLACES + 1)
#else
#define FITS(t)     (ALL(COUNTS, +) + SHARE(t) <= PLACES)
#endif

/* The waiters that are alive and listen: at a place, before somebody (or at all, if it has no place), the first. */
#define HEARS(i)    (queue[i] != NOBODY && LISTENS(queue[i]))
#define BEFORE_3(h) (queue[3] != (h) && HEARS(3))
#define BEFORE_2(h) (queue[2] != (h) && (HEARS(2) || BEFORE_3(h)))
#define BEFORE_1(h) (queue[1] != (h) && (HEARS(1) || BEFORE_2(h)))
#define OVERTAKES(h) (queue[0] != (h) && (HEARS(0) || BEFORE_1(h)))
#define HEAD_3      (HEARS(3) -> queue[3] : NOBODY)
#define HEAD_2      (HEARS(2) -> queue[2] : HEAD_3)
#define HEAD_1      (HEARS(1) -> queue[1] : HEAD_2)
#define HEAD        (HEARS(0) -> queue[0] : HEAD_1)

inline all_are_served() {
	next = HEAD;
	assert(!(LOOKED_AT(BLOCKED) && next != NOBODY && IN_USE + SHARE(next) <= PLACES));
	next = 0
}

#if defined(NO_SWEEP)
#define IS_SWEPT(h) false
#elif defined(WHOLE_ROOM_ENDS_TOGETHER)
#define IS_SWEPT(h) (ends[h] == 1 && IN_USE == 0)
#else
#define IS_SWEPT(h) (ends[h] == 1)
#endif
#define SWEEP(h)    ends[h] = (IS_SWEPT(h) -> 0 : ends[h])

inline sweep() {
	SWEEP(0); SWEEP(1); SWEEP(2);
#if N > 3
	SWEEP(3)
#endif
}

inline enter(t, a) {
	at = 0;
	do
	:: queue[at] != t && queue[at] != NOBODY -> at++
	:: queue[at] == t || queue[at] == NOBODY -> break
	od;
	queue[at] = t; known[t] = a; at = 0
}

inline leave(t) {
	at = 0;
	do
	:: at < N && queue[at] != t -> at++
	:: at < N && queue[at] == t -> queue[at] = queue[at + 1]; queue[at + 1] = t; at++       /* moves to the end */
	:: at == N -> break
	od;
	queue[N] = NOBODY; known[t] = 0; at = 0
}

inline put(h, lease) {
	assert(!(LOOKED_AT(OVERTAKEN) && !MEMBER(h) && OVERTAKES(h)));
	ends[h] = lease + 1
}

/* A message that can never let anybody in is a hint: a waiter may ask at any time without one. */
#ifdef GRANT_WITHOUT_ATTEMPT
#define COUNTS_FOR(t, a) true
#else
#define COUNTS_FOR(t, a) ((a) == refused[t] && first[t] > 0)
#endif
#define forget_hints(t) message[t] = (COUNTS_FOR(t, message[t]) -> message[t] : 0)

inline grant(t) {
	put(t, FIRST);
	message[t] = known[t]; forget_hints(t);
	leave(t)
}

inline serve(asking) {
	sweep(); stopped = false; w = 0;
	do
	:: next = queue[w];
		if
		:: next == NOBODY || next == asking && FITS(next) -> break
		:: next != NOBODY && next != asking -> leave(next)              /* its entry has ended */
		:: next != NOBODY && (next != asking || !FITS(next)) && !LISTENS(next) ->        /* passed over */
#ifdef DEAF_BLOCKS
			stopped = true; break
#else
			w++
#endif
		:: next != NOBODY && LISTENS(next) && !FITS(next) ->
#ifdef SMALL_OVERTAKES
			w++
#else
			stopped = true; break
#endif
		:: next != NOBODY && next != asking && LISTENS(next) && FITS(next) -> grant(next);
#ifdef BATCH_OF_ONE
			stopped = true; break
#endif
		fi
	od;
	w = 0; next = 0
}

#ifdef EXPIRED_IS_MINE
#define MINE(h) (ends[h] > 0)
#else
#define MINE(h) MEMBER(h)
#endif

inline s_acquire(h, a, got) {
	got = NO;
	if
	:: MINE(h) -> put(h, LEASE); leave(h); got = YES; serve(NOBODY); all_are_served()
	:: !MINE(h) -> sweep();
		if
		:: !FITS(h)
		:: FITS(h) ->
#ifndef QUEUE_NOT_ASKED
			serve(h);
#endif
#ifdef STOP_IGNORED
			stopped = false;
#endif
			if
			:: stopped -> all_are_served()
#ifdef FITS_ASKED_ONCE
			:: !stopped ->
#else
			:: !stopped && !FITS(h) -> all_are_served()
			:: !stopped && FITS(h) ->
#endif
				put(h, LEASE); got = YES;
#ifndef STAYS_IN_THE_QUEUE
				leave(h);
#endif
#ifndef NOT_SERVED_BY_ASKER
				serve(NOBODY);
#endif
				all_are_served()
			fi
		fi
	fi;
	if
	:: got == YES
	:: got == NO && (LISTENS(h) || known[h] != 0) -> enter(h, a)
	:: got == NO && !LISTENS(h) && known[h] == 0    /* it polls */
	fi;
	stopped = false
}

inline s_release(h) {
	if
	:: MEMBER(h) ->
#ifdef SERVED_BEFORE_REMOVED
		serve(NOBODY);
#endif
#ifdef RELEASE_DELETES_KEY
		ends[0] = 0; ends[1] = 0; ends[2] = 0;
#endif
		ends[h] = 0;
#ifndef SERVED_BEFORE_REMOVED
		serve(NOBODY);
#endif
		stopped = false; all_are_served()
	:: !MEMBER(h) -> serve(NOBODY); stopped = false; all_are_served()
	fi
}

inline s_withdraw(h) {
	leave(h);
#ifndef GRANT_NOT_PASSED_ON
#ifdef NOT_SERVED_ON_LEAVING
	if
	:: ends[h] > 0 -> ends[h] = 0; serve(NOBODY)
	:: ends[h] == 0
	fi;
#else
	ends[h] = 0; serve(NOBODY);
#endif
	stopped = false; all_are_served()
#endif
}

#if defined(EXTEND_BY_KEY)
#define EXTENDS(h) (IN_USE > 0)
#elif defined(EXTEND_BY_PRESENCE)
#define EXTENDS(h) (ends[h] > 0)
#else
#define EXTENDS(h)  MEMBER(h)
#endif

inline s_extend(h, got) {
	if
	:: EXTENDS(h) -> put(h, LEASE); got = YES
	:: !EXTENDS(h) -> got = NO
	fi
}

inline leaves(p) {
	ended[p] = true;
	attempt[p] = 0; refused[p] = 0; first[p] = 0; valid[p] = 0; message[p] = 0; unanswered = false
}

proctype Process(byte p; bool faulty; bool mortal) {
	byte got;
	bool unanswered;        /* an attempt may still run, or has run unseen */

wait:
	if
	:: atomic { attempt[p] < TRIES -> attempt[p]++; s_acquire(p, attempt[p], got);
		if
		:: got == YES -> valid[p] = LEASE; first[p] = 0; message[p] = 0; got = NOTHING; goto held
		:: got == NO -> first[p] = FIRST; refused[p] = attempt[p]; forget_hints(p); got = NOTHING; goto wait
		fi }
	:: atomic { faulty && attempt[p] < TRIES && under_way < LATES -> attempt[p]++; unanswered = true;
		under_way++; late[p] = late[p] | BIT(attempt[p]); goto wait }
	:: atomic { message[p] != 0 && COUNTS_FOR(p, message[p]) && first[p] > 0 ->
		valid[p] = first[p]; first[p] = 0; message[p] = 0; goto held }
	:: atomic { attempt[p] > 0 ->                   /* gives up */
		leaves(p);
		if
		:: faulty -> job[p] = true
		:: !faulty -> s_withdraw(p)
		fi;
		goto done }
	:: atomic { mortal && attempt[p] > 0 -> dead[p] = true; leaves(p); goto done }
	fi;

held:
	if
	:: atomic { valid[p] > 0 && (valid[p] < LEASE || !MEMBER(p)) -> s_extend(p, got);
		valid[p] = (got == YES -> LEASE : 0); got = NOTHING; goto held }
	:: atomic { faulty && valid[p] > 0 && (late[p] & BIT(EXTEND)) == 0 && under_way < LATES ->
		under_way++; late[p] = late[p] | BIT(EXTEND); goto held }
	:: atomic { s_release(p); job[p] = unanswered; leaves(p); goto done }
	:: atomic { faulty -> job[p] = true; leaves(p); goto done }     /* no answer: it may have run or not */
	:: atomic { mortal -> dead[p] = true; leaves(p); goto done }
	fi;
done:	skip
}

/* What happens by itself to process h: late requests, the cleaner, the inbox. */
proctype Aftermath(byte h) {
	byte a, got;
end:
	do
	:: atomic { late[h] != 0 ->
		if
		:: (late[h] & BIT(EXTEND)) != 0 -> a = EXTEND
		:: (late[h] & BIT(1)) != 0 -> a = 1
		:: (late[h] & BIT(2)) != 0 -> a = 2
		fi;
		late[h] = late[h] & ~BIT(a); under_way--;
		if
		:: a == EXTEND -> s_extend(h, got)
		:: a != EXTEND -> s_acquire(h, a, got)
		:: true
		fi;
		got = NOTHING; a = 0 }
	:: atomic { job[h] -> s_withdraw(h);
		if
		:: late[h] == 0 -> job[h] = false
		:: late[h] != 0
		fi }
	:: atomic { !dead[h] -> away[h] = !away[h] }
	od
}

#define LESS(x) x = ((x > 0) -> x - 1 : 0)
#define RUNS(h) (ends[h] > 1 || first[h] + valid[h] > 0)

inline tick(h) {
	ends[h] = (ends[h] > 1 -> ends[h] - 1 : ends[h]);
	LESS(first[h]); LESS(valid[h]); forget_hints(h)
}

active proctype Clock() {
end:
	do
	:: atomic { ALL(RUNS, ||) ->
		tick(0); tick(1); tick(2);
#if N > 3
		tick(3)
#endif
		}
	od
}

#define INSIDE(h)   (valid[h] > 0 -> SHARE(h) : 0)
#define ORPHANED(h) (MEMBER(h) && ended[h] && !job[h] && !dead[h])

active proctype Monitor() {
end:
	do
	:: atomic { LOOKED_AT(OVERLAP) && ALL(INSIDE, +) > PLACES -> assert(false) }
	:: atomic { LOOKED_AT(ROOM) && IN_USE > PLACES -> assert(false) }
	:: atomic { LOOKED_AT(ORPHAN) && ALL(ORPHANED, ||) -> assert(false) }
	od
}

init {
	atomic {
#if defined(WIDE)
		run Process(0, false, false); run Process(1, false, true);
		run Process(2, true, false); run Process(3, false, false);
		run Aftermath(2)
#elif defined(PERMITS)
		run Process(0, false, true); run Process(1, false, false);
		run Process(2, false, true); run Process(3, false, true);
		run Aftermath(0); run Aftermath(2)
#else
		run Aftermath(0); run Aftermath(2);     /* in this order, an error is found early */
		run Process(1, false, false); run Process(2, true, true); run Process(0, true, false)
#endif
	}
}
