/* A lock on a majority of three nodes (Redlock).
 *
 * Rules: R1 validity from asked_at, which is one instant for all nodes; R2; R3 (here a token lives for one
 * round: see TOKEN_KEPT_OVER_ROUNDS); R5, R7, R10, R17, R33.
 *
 * Steps and scripts. A round sends one request to every node in one step (`SENT`); each node runs it
 * at some moment (`GRANTED`: the reply is on its way; a refusal counts like no reply); the client decides once,
 * whenever its deadline is: with a majority it goes in, without one it gives the round up. It may
 * give up although a majority has answered: lost and late replies look like that to the client. Requests that
 * are still under way then may run at any later time, or never. An extend is such a round too. The end of
 * a round or a hold gives all nodes to the cleaner (`job`), one by one. A node that denied an extend is
 * given the lease again (`again`, NX) if what it was last given had run out by our own clock before that
 * extend was sent (`given`, `out`), and a majority confirmed that very round; the node's queue brings this
 * after the extend and before any undo that was queued later, and it is dropped once the round has `ended`.
 *
 * Time. As in single.pml: countdowns moved together, and no step is urgent: a node that is slow or frozen
 * is one whose step comes late.
 *
 * Sizes: 3 nodes; a client with two rounds, the first one with every fault and any number of extends; a
 * rival with one round, whose requests run before its deadline or never; one request left behind at
 * any one time, on node 0 (the nodes are alike); a lease of 2 ticks. Enough: two majorities of three
 * share one node, so each property is about one node on which two rounds disagree, and a request left
 * behind matters on that node only. A node can be without the lease because its request never ran, or ran
 * so long ago that its lease ended.
 * -DFORCE: instead of the rival an operator, who forces the lock of round 0 once, node by node. Without an operator
 * the lease is given again whatever `given` says, because neither OVERLAP nor ORPHAN depends on it, and on
 * node 0 only. With an operator no request is left behind: a late copy from any sender may bring back the
 * lease that was forced.
 *
 * Left out: nodes that lose their keys, and clocks that run at different rates (no promise, or the drift of
 * R1); a second server-side lease length; the number of threads.
 *
 * Properties:
 * OVERLAP: two clients inside and valid at the same time.
 * ORPHAN: a node keeps a key for a round that has ended, and no cleaner will withdraw it.
 * BACK: a forced unlock has freed a majority before the lease that it had read ran out, and a majority holds
 * round 0's token again.
 *
 * Must fail, by which property, and by which interleaving:
 * MISSING_REPLY_IS_VOTE   OVERLAP  A gets node 0, B nodes 1 and 2; A's requests to 1 and 2 are under way and
 *     count.
 * LATE_MAJORITY_IS_GRANT  OVERLAP  at A's deadline one node has answered, so the round is withdrawn; then the
 *     second says yes and A goes in, while the withdrawal frees the nodes for B.
 * NO_RELEASE_OF_MINORITY  ORPHAN   A gets node 0 only, gives up, and leaves its key there.
 * UNANSWERED_NOT_WITHDRAWN ORPHAN  A gives up, withdraws from node 0 while its request to it is under way, and
 *     then the request runs.
 * RENEWAL_CREATES         ORPHAN   A's extend is under way to node 2 as A unlocks; it runs after the release.
 * MINORITY_EXTENDS        OVERLAP  A extends on node 0 only; B gets 1 and 2 when their leases run out.
 * VALIDITY_FROM_REPLY     OVERLAP  node 0 grants A, and two ticks later node 1 does; A counts from then;
 *     node 0 is B's by now.
 * TOKEN_KEPT_OVER_ROUNDS  OVERLAP  A's round 1 gets a minority; its withdrawal from node 0 runs after round 2,
 *     with the same token, was granted there.
 * REGRANT_AFTER_UNDO      ORPHAN   node 0 denies A's extend, nodes 1 and 2 confirm it; A unlocks, and its release
 *     has been on node 0 when the lease comes there again.
 * REGRANT_TOO_SOON         BACK     a forced unlock has been on node 0, which denies A's extend; nodes 1 and 2 confirm
 *     it, and node 0 is given the lease again; so with node 1; then the operator comes to node 2.
 * REGRANT_WITHOUT_MAJORITY BACK    nodes 0 and 1 lost the lease long ago and deny A's extend, and node 2 confirms it;
 *     then a forced unlock comes to all three, and A's lease comes to nodes 0 and 1 again.
 */

#define OVERLAP   1
#define ORPHAN    2
#define BACK      3
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
#define ROUNDS    3     /* rounds 0 and 1 are client 0's, round 2 is client 1's */
#define NOBODY    ROUNDS
#if defined(MINORITY_EXTENDS) || defined(FORCED)
#define LATES     0     /* MINORITY_EXTENDS needs none, and is found sooner without any */
#else
#define LATES     1     /* at any one time */
#endif
#define OWNER(r)  ((r) / 2)
#ifdef TOKEN_KEPT_OVER_ROUNDS
#define TOKEN(r)  (OWNER(r) * 2)
#else
#define TOKEN(r)  (r)
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
byte call[6];                   /* by client and node: the request of the round under way */
byte late[NODES];               /* a request of round 0, ACQUIRE, EXTEND or REGRANT, that may still run */
byte under_way;                 /* how many of them */

/* the clients */
byte left[2];                   /* the rest of a lease granted to the round under way */
byte valid[2];
bool inside[2];
bool extending[2];

/* the cleaners */
bool ended[ROUNDS];
bool job[NODES];                /* round 0's, by node */
bool again[NODES];              /* the lease is to be given again, in the node's queue */

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
	:: key[n] == NOBODY || key[n] == TOKEN(r) ->
		key[n] = TOKEN(r); ttl[n] = LEASE; answer = GRANTED; GIVEN(n, r)
	:: else -> answer = IDLE
	fi
}

inline extend(n, r, answer) {
	if
#ifdef RENEWAL_CREATES
	:: key[n] == NOBODY || key[n] == TOKEN(r) -> key[n] = TOKEN(r); ttl[n] = LEASE; answer = GRANTED
#else
	:: key[n] == TOKEN(r) -> ttl[n] = LEASE; answer = GRANTED; GIVEN(n, r)
#endif
	:: else -> answer = (WAS_OUT(n) -> DENIED : IDLE)
	fi
}

inline regrant(n) {
	if
	:: key[n] == NOBODY -> key[n] = 0; ttl[n] = LEASE; GIVEN(n, 0)
	:: else
	fi
}

inline withdraw(n, r) {
	if
	:: key[n] == TOKEN(r) -> key[n] = NOBODY; ttl[n] = 0
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
		under_way++; CALL(c, n) = IDLE; late[n] = (extending[c] -> EXTEND : ACQUIRE); n++
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
		inside[c] = true; stops_listening(c, r) }
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
#ifdef REGRANT_AFTER_UNDO
	:: atomic { again[n] -> again[n] = false; regrant(n) }
#else
	:: atomic { again[n] && !ended[0] && RAN_OUT(n) -> again[n] = false; regrant(n) }
	:: atomic { again[n] && !(!ended[0] && RAN_OUT(n)) -> again[n] = false }
	:: atomic { again[n] && !ended[0] && RAN_OUT(n) && n == 0 && late[n] == 0 && under_way < LATES ->
		again[n] = false; under_way++; late[n] = REGRANT }      /* sent, and not answered */
#endif
	od
}

/* What is left of round 0 at node n: a request under way, and the cleaner's job. */
proctype Aftermath(byte n) {
	byte answer;
end:
	do
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
		job[n] = (late[n] == ACQUIRE || late[n] == REGRANT)
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
		:: n < NODES && key[n] == 0 && ttl[n] < forcing -> forcing = ttl[n]; n++
		:: n < NODES && !(key[n] == 0 && ttl[n] < forcing) -> n++
		:: n == NODES -> break
		od;
		n = 0 };
	do
	:: atomic { n < NODES -> freed = freed + (key[n] == 0 && forcing > 0); withdraw(n, 0); n++ }
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
	:: atomic { ttl[0] + ttl[1] + ttl[2] + left[0] + left[1] + valid[0] + valid[1] + MORE > 0 ->
		LESS(left[0]); LESS(left[1]); LESS(valid[0]); LESS(valid[1]);
#ifdef FORCED
		LESS(given[0]); LESS(given[1]); LESS(given[2]); LESS(forcing);
#endif
		tick(0); tick(1); tick(2) }
	od
}

#define KEPT(n) (key[n] != NOBODY && ended[key[n]] && !(key[n] == 0 && job[n]))

active proctype Monitor() {
end:
	do
	:: atomic { LOOKED_AT(OVERLAP) && inside[0] && valid[0] > 0 && inside[1] && valid[1] > 0 -> assert(false) }
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
		run Client(0, 0, 2); run Client(1, 2, 1);
#endif
		run Node(0); run Node(1); run Node(2);
		run Aftermath(0); run Aftermath(1); run Aftermath(2)
	}
}
