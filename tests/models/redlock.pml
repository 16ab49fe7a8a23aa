/* A lock on a majority of three nodes (Redlock), with one-shot tokens.
 *
 * Rules: R1 validity from asked_at, which is one instant for all nodes; R2; R3, R31: each attempt has a fresh
 * token, and is sent once to each node, which grants only if it holds nothing: its own token there is a refusal,
 * whoever put it there; R5, R7: an extend never creates, and never moves the end to an earlier time; R10, R17: a
 * missing reply is no vote.
 *  R32 an attempt that failed is withdrawn at once, one that got the majority only when its hold has ended: on every
 *     node that granted it or did not answer. The cleaner repeats it while a command that creates (an attempt, a
 *     re-grant) was not answered there and may still arrive.
 *  R33 a re-grant: after a majority has confirmed an extend, a node that denied that extend, and on which what it
 *     was last given had run out before the extend was sent, gets one SET NX. It is no vote. It is sent only while
 *     the hold has not ended, on the node's thread, so before the withdrawal. One without a reply counts as
 *     unanswered (R32).
 *
 * Steps and scripts. A round sends one request to every node in one step (`SENT`); each node runs it at some
 * moment (`GRANTED`: the reply is on its way; a refusal counts like no reply); the client decides once, whenever
 * its deadline is: with a majority it goes in, without one it gives the round up. It may give up although a
 * majority has answered: lost and late replies look like that to the client. An extend is such a round too. The
 * end of a round or a hold gives nodes to the cleaner (`job`), one by one. `given`, `out`: what a node was last
 * given has run out by our own clock.
 *
 * Time. As in single.pml: countdowns moved together, and no step is urgent: a node that is slow or frozen is one
 * whose step comes late.
 *
 * Sizes: 3 nodes; a client with two rounds, the first one with every fault and any number of extends; a rival with
 * one round, whose requests run before its deadline or never; one request left behind at any one time, on node 0
 * (the nodes are alike); a lease of 2 ticks. Enough: two majorities of three share one node, so each property is
 * about one node on which two rounds disagree, and a request left behind matters on that node only. `late`: a
 * request that is read later than the connection was closed, or never. The cleaner's job on a node ends only when
 * nothing can arrive there any more: how it can know is settle.pml. `noted`: a command that creates was not
 * answered there.
 * -DFORCE: an operator who forces the lock of round 0, instead of the rival; no request is left behind.
 * -DALIAS: nodes 0 and 1 are one server. An extend may get two votes there, a grant only one.
 * (And with THREE, as many states again: a third client with one round, and no second round of client 0.)
 *
 * Left out: nodes that lose their keys (outside of the promise: EMPTIED shows what happens), clocks at different
 * rates.
 *
 * Properties:
 * OVERLAP: two clients inside and valid at the same time.
 * ORPHAN: a node keeps a key for a round that has ended, and no cleaner will withdraw it.
 * BACK: a forced unlock has freed a majority before the lease that it had read ran out, and a majority holds
 * round 0's token again.
 * TAKEN: a withdrawal has deleted a lease of a hold that has not ended, or of another round.
 * TWICE: a server has given two votes for one attempt.
 *
 * Must fail, by which property, and by which interleaving:
 * MISSING_REPLY_IS_VOTE   OVERLAP  A gets node 0, B nodes 1 and 2; A's requests to 1 and 2 are under way and count.
 * LATE_MAJORITY_IS_GRANT  OVERLAP  at A's deadline one node has answered, so the round is withdrawn; then the
 *     second says yes and A goes in.
 * NO_RELEASE_OF_MINORITY  ORPHAN   A gets node 0 only, gives up, and leaves its key there.
 * UNANSWERED_NOT_WITHDRAWN ORPHAN  A gives up and withdraws from node 0 while its request to it is under way; it
 *     runs.
 * RENEWAL_CREATES         ORPHAN   A's extend is under way to node 2 as A unlocks; it runs after the release.
 * MINORITY_EXTENDS        OVERLAP  A extends on node 0 only; B gets 1 and 2 when their leases run out.
 * VALIDITY_FROM_REPLY     OVERLAP  node 0 grants A, and two ticks later node 1 does; A counts from then.
 * TOKEN_KEPT_OVER_ROUNDS  TAKEN    A's round 1 gets a minority; its withdrawal from node 0 runs after round 2,
 *     with the same token, was granted there. (So would a caller's own value; it breaks OVERLAP as well.)
 * WITHDRAWN_WHILE_HELD    TAKEN    A gets nodes 1 and 2, node 0 does not answer and is withdrawn from at once; the
 *     late request runs there, an extend counts node 0, and the withdrawal deletes the key of the hold.
 * MINE_IS_VOTE            TWICE    nodes 0 and 1 are one server, which says yes under both names.
 * REGRANT_FORGOTTEN       ORPHAN   a re-grant to node 0 has no reply; A unlocks, node 0 answers the withdrawal,
 *     and the re-grant runs.
 * REGRANT_AFTER_UNDO      ORPHAN   node 0 denies A's extend, nodes 1 and 2 confirm it; A unlocks, and its withdrawal
 *     has been on node 0 when the re-grant comes there.
 * REGRANT_TOO_SOON        BACK     a forced unlock has been on node 0, which denies A's extend; nodes 1 and 2 confirm
 *     it, and node 0 is given the lease again; so with node 1; then the operator comes to node 2.
 * REGRANT_WITHOUT_MAJORITY BACK    nodes 0 and 1 lost the lease long ago and deny A's extend, and node 2 confirms it;
 *     then a forced unlock comes to all three, and A's lease comes to nodes 0 and 1 again.
 */

#ifdef MINE_IS_VOTE
#define ALIAS
#endif
#define OVERLAP   1
#define ORPHAN    2
#define BACK      3
#define TAKEN     4
#define TWICE     5
#if defined(FORCE) || (defined(ONLY) && ONLY == BACK)
#define FORCED
#endif
#ifdef ONLY
#define LOOKED_AT(property) (ONLY == (property))
#else
#define LOOKED_AT(property) 1
#endif

#define LEASE     2
#define NODES     3
#define ROUNDS    4     /* rounds 0 and 1 are client 0's, round 2 is client 1's, round 3 client 2's */
#define CLIENTS   3
#define NOBODY    ROUNDS
#if defined(MINORITY_EXTENDS) || defined(FORCED) || defined(THREE)
#define LATES     0     /* MINORITY_EXTENDS needs none, and is found sooner without any */
#else
#define LATES     1     /* at any one time */
#endif
#define OWNER(r)  ((r) < 2 -> 0 : (r) - 1)
#ifdef TOKEN_KEPT_OVER_ROUNDS
#define TOKEN(r)  ((r) == 1 -> 0 : (r))
#else
#define TOKEN(r)  (r)
#endif

#ifdef ALIAS
#define S(n)      ((n) == 1 -> 0 : (n))
#else
#define S(n)      (n)
#endif

#define IDLE      0
#define SENT      1
#define GRANTED   2
#define DENIED    3
#define ACQUIRE   1
#define EXTEND    2
#define REGRANT   3

/* the nodes */
byte key[NODES] = NOBODY;       /* the token */
byte ttl[NODES];

/* the network */
byte round;                     /* the round of client 0 that is under way */
byte call[9];                   /* by client and node: the request of the round under way */
byte late[NODES];               /* a request of round 0, ACQUIRE, EXTEND or REGRANT, that may still run */
byte under_way;                 /* how many of them */

/* the clients */
byte left[CLIENTS];                   /* the rest of a lease granted to the round under way */
byte valid[CLIENTS];
bool inside[CLIENTS];
bool extending[CLIENTS];

/* the cleaners */
bool ended[ROUNDS];
bool job[NODES];                /* round 0's, by node */
bool again[NODES];              /* the lease is to be given again, in the node's queue */
bool noted[NODES];              /* a command of round 0 that creates had no answer there */

/* for the properties */
bool taken;
#ifdef EMPTIED
bool emptied;
#endif
#ifdef ALIAS
bool gave[NODES];               /* by server: it has granted round 0 its vote */
bool twice;
#define VOTES(n, r) twice = (twice || (r == 0 && gave[S(n)] && left[0] > 0 && CALL(0, n) == SENT && !extending[0] && round == 0)); gave[S(n)] = (gave[S(n)] || r == 0)
#else
#define VOTES(n, r) skip
#endif

#ifdef FORCED
byte given[NODES];              /* the rest of the lease that round 0 was last given there, by its own clock */

bool out[NODES];                /* whether that had run out when the last extend was sent */
byte forcing;                   /* the least rest of the lease that the operator has read */
bool forced;                    /* the operator has freed a majority before that ran out */
#endif

#define CALL(c, n)  call[(c) * 3 + (n)]
#define IS(c, what) ((CALL(c, 0) == what) + (CALL(c, 1) == what) + (CALL(c, 2) == what))

#ifdef FORCED
#define GIVEN(n, r) if \
	:: (r) == 0 -> given[n] = LEASE; out[n] = false; again[n] = false; CALL(0, n) = (CALL(0, n) == DENIED -> IDLE : CALL(0, n)) \
	:: else \
	fi
#else
#define GIVEN(n, r) skip
#endif
#if defined(REGRANT_TOO_SOON)
#define RAN_OUT(n) true
#define WAS_OUT(n) true
#elif !defined(FORCED)
#define RAN_OUT(n) true
#define WAS_OUT(n) (n == 0)
#else
#define RAN_OUT(n) (given[n] == 0)
#define WAS_OUT(n) out[n]
#endif

inline acquire(n, r, answer) {
	if
#ifdef MINE_IS_VOTE
	:: key[S(n)] == NOBODY || key[S(n)] == TOKEN(r) ->
#else
	:: key[S(n)] == NOBODY ->
#endif
		key[S(n)] = TOKEN(r); ttl[S(n)] = LEASE; answer = GRANTED; GIVEN(n, r);
		VOTES(n, r)
	:: else -> answer = IDLE
	fi
}

inline extend(n, r, answer) {
	if
#ifdef RENEWAL_CREATES
	:: key[S(n)] == NOBODY || key[S(n)] == TOKEN(r) -> key[S(n)] = TOKEN(r); ttl[S(n)] = LEASE; answer = GRANTED
#else
	:: key[S(n)] == TOKEN(r) -> ttl[S(n)] = LEASE; answer = GRANTED; GIVEN(n, r)
#endif
	:: else -> answer = (WAS_OUT(n) -> DENIED : IDLE)
	fi
}

inline regrant(n) {
	if
	:: key[S(n)] == NOBODY -> key[S(n)] = 0; ttl[S(n)] = LEASE; GIVEN(n, 0)
	:: else
	fi
}

inline withdraw(n, r) {
	if
	:: key[S(n)] == TOKEN(r) -> key[S(n)] = NOBODY; ttl[S(n)] = 0;
		taken = (taken || !ended[r] || (TOKEN(r) != r) || (TOKEN(1) == TOKEN(0) && r == 0 && round == 1 && !ended[1]))
	:: else
	fi
}

inline forces(n) {
	if
	:: key[S(n)] == 0 -> key[S(n)] = NOBODY; ttl[S(n)] = 0
	:: else
	fi
}

inline send(c) {
#ifdef FORCED
	out[0] = (given[0] == 0); out[1] = (given[1] == 0); out[2] = (given[2] == 0);
#endif
	left[c] = LEASE; CALL(c, 0) = SENT; CALL(c, 1) = SENT; CALL(c, 2) = SENT
}

/* The client no longer listens; requests that have not run may be left behind. */
inline stops_listening(c, r) {
	n = 0;
	do
	:: n < NODES && CALL(c, n) == SENT && r == 0 && n == 0 && late[n] == 0 && under_way < LATES ->
		under_way++; CALL(c, n) = IDLE; late[n] = (extending[c] -> EXTEND : ACQUIRE); noted[n] = (noted[n] || !extending[c]); n++
	:: n < NODES -> CALL(c, n) = IDLE; n++
	:: n == NODES -> break
	od;
	n = 0; left[c] = 0; extending[c] = false
}

/* After an extend of round 0: the nodes that denied it. */
inline give_again() {
	n = 0;
	do
	:: n < NODES && CALL(0, n) == DENIED -> again[n] = true; n++
	:: n < NODES && CALL(0, n) != DENIED -> n++
	:: n == NODES -> break
	od;
	n = 0
}

inline release_everywhere(r) {
	ended[r] = true; n = 0;
	do
	:: n < NODES && r == 0 -> job[n] = true; n++
	:: n < NODES && r != 0 -> withdraw(n, r); n++
	:: n == NODES -> break
	od;
	n = 0
}

proctype Client(byte c; byte r; byte rounds) {
	byte n;

next:
	if
	:: rounds == 0 -> goto done
	:: rounds > 0
	fi;
	atomic { rounds--; round = (c == 0 -> r : round); send(c) };

	/* the deadline */
	if
	:: atomic {
#ifdef MISSING_REPLY_IS_VOTE
		IS(c, GRANTED) + IS(c, SENT) >= 2 &&
#else
		IS(c, GRANTED) >= 2 &&
#endif
#ifdef VALIDITY_FROM_REPLY
		true -> valid[c] = LEASE;
#else
		left[c] > 0 -> valid[c] = left[c];
#endif
		inside[c] = true; stops_listening(c, r);
#ifdef WITHDRAWN_WHILE_HELD
		job[0] = (r == 0 && noted[0])
#endif
		}
	:: atomic {
#ifdef LATE_MAJORITY_IS_GRANT
		release_everywhere(r) };
		if
		:: atomic { IS(c, GRANTED) >= 2 && left[c] > 0 -> valid[c] = left[c]; inside[c] = true; stops_listening(c, r); goto held }
		:: true
		fi;
		atomic { stops_listening(c, r); r++; goto next }
#elif defined(NO_RELEASE_OF_MINORITY)
		stops_listening(c, r); ended[r] = true; r++; goto next }
#else
		stops_listening(c, r); release_everywhere(r); r++; goto next }
#endif
	fi;

held:
	if
	:: atomic { r == 0 && valid[c] > 0 -> extending[c] = true; send(c) };
		atomic {
			if
#ifdef MINORITY_EXTENDS
			:: IS(c, GRANTED) >= 1 && valid[c] > 0 && left[c] > valid[c] -> valid[c] = left[c]
#else
			:: IS(c, GRANTED) >= 2 && valid[c] > 0 && left[c] > valid[c] -> valid[c] = left[c]; give_again()
#endif
#ifdef REGRANT_WITHOUT_MAJORITY
			:: IS(c, GRANTED) >= 1 && valid[c] > 0 -> give_again()
#endif
			:: true                         /* no majority: validity does not move */
			fi;
			stops_listening(c, r); goto held
		}
	:: atomic { inside[c] = false; valid[c] = 0; release_everywhere(r); r++; goto next }
	fi;
done:	skip
}

/* Runs what was sent to it, in any order and at any time. */
proctype Node(byte n) {
	byte answer;
end:
	do
	:: atomic { CALL(0, n) == SENT && !extending[0] -> acquire(n, round, answer); CALL(0, n) = answer; answer = IDLE }
	:: atomic { CALL(0, n) == SENT && extending[0] -> extend(n, round, answer); CALL(0, n) = answer; answer = IDLE }
	:: atomic { CALL(1, n) == SENT -> acquire(n, 2, answer); CALL(1, n) = answer; answer = IDLE }
#ifdef THREE
	:: atomic { CALL(2, n) == SENT -> acquire(n, 3, answer); CALL(2, n) = answer; answer = IDLE }
#endif
#ifdef REGRANT_AFTER_UNDO
	:: atomic { again[n] -> again[n] = false; regrant(n) }
#else
	:: atomic { again[n] && !ended[0] && RAN_OUT(n) -> again[n] = false; regrant(n) }
	:: atomic { again[n] && !(!ended[0] && RAN_OUT(n)) -> again[n] = false }
	:: atomic { again[n] && !ended[0] && RAN_OUT(n) && n == 0 && late[n] == 0 && under_way < LATES ->
		again[n] = false; under_way++; late[n] = REGRANT;                /* sent, and not answered */
#ifndef REGRANT_FORGOTTEN
		noted[n] = true
#endif
		}
#endif
	od
}

/* What is left of round 0 at node n: a request under way, and the cleaner's job. */
proctype Aftermath(byte n) {
	byte answer;
end:
	do
#ifdef EMPTIED
	:: atomic { n == 1 && !emptied -> emptied = true; key[S(n)] = NOBODY; ttl[S(n)] = 0 }
#endif
	:: atomic { late[n] != 0 ->
		if
		:: late[n] == ACQUIRE -> acquire(n, 0, answer)
		:: late[n] == EXTEND -> extend(n, 0, answer)
		:: late[n] == REGRANT -> regrant(n)
		:: true
		fi;
		late[n] = 0; under_way--; answer = IDLE }
	:: atomic { job[n] -> withdraw(n, 0);
#ifdef UNANSWERED_NOT_WITHDRAWN
		job[n] = false
#else
		job[n] = (noted[n] && (late[n] == ACQUIRE || late[n] == REGRANT))
#endif
		}
	od
}

#ifdef FORCED
/* Forces the lock of round 0 while it is held: reads it, then releases it node by node. */
proctype Operator() {
	byte n, freed;
end:
	atomic { inside[0] && round == 0; forcing = LEASE;
		do
		:: n < NODES && key[S(n)] == 0 && ttl[S(n)] < forcing -> forcing = ttl[S(n)]; n++
		:: n < NODES && !(key[S(n)] == 0 && ttl[S(n)] < forcing) -> n++
		:: n == NODES -> break
		od;
		n = 0 };
	do
	:: atomic { n < NODES -> freed = freed + (key[S(n)] == 0 && forcing > 0); forces(n); n++ }
	:: atomic { n == NODES -> forced = (freed >= 2); forcing = 0; break }
	od
}

#endif

#ifdef FORCED
#define MORE given[0] + given[1] + given[2] + forcing
#else
#define MORE 0
#endif

#define LESS(x) x = ((x > 0) -> x - 1 : 0)

inline tick(n) {
	if
	:: ttl[n] == 1 -> key[n] = NOBODY; ttl[n] = 0
	:: ttl[n] > 1 -> ttl[n]--
	:: else
	fi
}

active proctype Clock() {
end:
	do
	:: atomic { ttl[0] + ttl[1] + ttl[2] + left[0] + left[1] + left[2] + valid[0] + valid[1] + valid[2] + MORE > 0 ->
		LESS(left[0]); LESS(left[1]); LESS(left[2]); LESS(valid[0]); LESS(valid[1]); LESS(valid[2]);
#ifdef FORCED
		LESS(given[0]); LESS(given[1]); LESS(given[2]); LESS(forcing);
#endif
		tick(0); tick(1); tick(2) }
	od
}

#define JOB(n) (job[n] || (S(1) == 0 && n == 0 && job[1]))
#define KEPT(n) (key[n] != NOBODY && ended[key[n]] && !(key[n] == 0 && JOB(n)))

active proctype Monitor() {
end:
	do
#define IN(c) (inside[c] && valid[c] > 0)
	:: atomic { LOOKED_AT(OVERLAP) && ((IN(0) && IN(1)) || (IN(0) && IN(2)) || (IN(1) && IN(2))) -> assert(false) }
	:: atomic { LOOKED_AT(TAKEN) && taken -> assert(false) }
#ifdef ALIAS
	:: atomic { LOOKED_AT(TWICE) && twice -> assert(false) }
#endif
	:: atomic { LOOKED_AT(ORPHAN) && (KEPT(0) || KEPT(1) || KEPT(2)) -> assert(false) }
#ifdef FORCED
	:: atomic { LOOKED_AT(BACK) && forced && (key[0] == 0) + (key[1] == 0) + (key[2] == 0) >= 2 -> assert(false) }
#endif
	od
}

init {
	atomic {
#ifdef FORCED
		run Client(0, 0, 2); run Operator();
#else
#ifdef THREE
		run Client(0, 0, 1); run Client(1, 2, 1); run Client(2, 3, 1);
#else
		run Client(0, 0, 2); run Client(1, 2, 1);
#endif
#endif
		run Node(0); run Node(1); run Node(2);
		run Aftermath(0); run Aftermath(1); run Aftermath(2)
	}
}
