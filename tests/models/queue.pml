/* The server's queue with direct hand-off, and the hand-off between threads of one process.
 *
 * Rules: R1, R2, R3, R4, R5, R10, R15 (who may enter on a wake-up), R20 (short first lease), R21 (a message that
 * exists is true).
 *
 * Steps and scripts. s_acquire is an attempt: the first one is bare (`SET NX PX`, does not queue) or the
 * script, later ones are the script. s_release is the unlock, s_withdraw the cleaner's, serve the part
 * that makes a waiter the owner and publishes; each is one step. An attempt that got no answer in time
 * runs at any later time, also at once, or never (`late`). A published message is received at any
 * later time, or never (`message`). Of the threads of one process only the one with the `turn` talks to
 * the server. The turn passes on the seat as it was left: with a lease (local hand-off), with a place in
 * the queue (token, attempts, asked_at), or with nothing.
 *
 * A failover: process 0 has its inbox at the former master (`away`), which as a replica still receives what the new
 * master publishes. Serve asks who listens at the server on which it runs: an inbox that is away does not count. The
 * inbox moves to the new master at any later time.
 *
 * Time. As in single.pml: countdowns, moved together, and no step is urgent. An answered attempt
 * asks, runs and gets its answer in one step: that is the latest asked_at which R1 allows and the earliest
 * "acquired", so its validity is at least as long as that of any slower attempt. `first` is the rest of the
 * first lease, counted from the last attempt whose refusal was received.
 *
 * Sizes: a process with two threads that lock once each, every fault in it, and a process that locks
 * twice, may die, and is always answered; 2 attempts per acquisition; 2 requests late at any one time;
 * a lease of 2 ticks, a first lease of 1. Enough: each race is between a waiter with an old and a new
 * attempt, an owner, and the client that takes the key in between, which may be the owner again.
 * -DWIDE: three processes of one thread that locks once, one of them with every fault, one that may
 * die: for waiters that are passed over, and waiters that are served in between. (With every fault in two of them and 1 late: 4.1 million
 * states, and no error either.)
 *
 * Left out: the order of the queue. Serve picks any waiter and passes over any; so what holds here
 * holds for every order, every lifetime of an entry, and every inbox that does not listen because it is dead,
 * frozen or reconnecting (a forgotten entry is one that is passed over for ever). Pauses and hints: a waiter may
 * ask at any time, so a message that lets nobody in changes nothing. Late releases and extends:
 * single.pml. Fences. Drift: as in single.pml.
 *
 * Properties:
 * OVERLAP: two processes inside and valid at the same time, or two threads of one inside.
 * ORPHAN: the key is held for an acquisition that has ended in a living process, and no cleaner has it.
 * STUCK: a thread waits for a turn that nobody will pass on.
 *
 * Must fail, by which property, and by which interleaving:
 * GRANT_WITHOUT_LISTENING   OVERLAP  T is made the owner and published to, but no listener counts at this server: T is
 *     passed over, and the next is served; T receives the message at the replica.
 * GRANT_WITHOUT_ATTEMPT     OVERLAP  T refused (attempt 2), granted, the message is late; the grant expires,
 *     B takes the key; attempt 3 of T refused; the message arrives, and T counts from attempt 3.
 * VALIDITY_FROM_WAKEUP      OVERLAP  T granted, the message arrives after the first lease, B takes the key; T
 *     receives it and counts from now.
 * TOKEN_REUSED              OVERLAP  an attempt of hold 1 unanswered; hold 1 ends, its withdrawal meets
 *     hold 2 with the same token and gives the key away.
 * UNANSWERED_NOT_WITHDRAWN  ORPHAN   an attempt unanswered, the next one granted, released; the first runs.
 * GRANT_NOT_PASSED_ON       ORPHAN   T gives up as it is granted; its withdrawal only leaves the queue.
 * BARE_AFTER_QUEUEING       ORPHAN   T refused and queued; the owner's lease runs out; T's next attempt is
 *     bare and granted, T stays in the queue; its own release serves T, which has gone.
 * LISTENS_TOO_LATE          OVERLAP  T's first attempt runs and queues, its answer is lost; T is granted, but
 *     its inbox knows only tokens that have received a refusal, and withdraws this one; T's next attempt
 *     finds "mine", T goes in, the withdrawal runs.
 * WITHDRAWN_WHILE_HANDED_ON OVERLAP  an attempt unanswered, the next one granted; thread 1 hands its
 *     lease to thread 2, and the attempt is withdrawn at once: the same token, the lease of thread 2.
 * HANDED_ON_PAST_VALIDITY   OVERLAP  thread 2 is given a lease, sleeps past its end, and goes in as if it
 *     were new.
 * TURN_NOT_PASSED_ON        STUCK    a thread gives up as it is given the turn, and keeps it.
 */

#define OVERLAP   1
#define ORPHAN    2
#define STUCK     3     /* a deadlock: the search itself finds it */
#ifdef ONLY
#define LOOKED_AT(property) (ONLY == (property))
#else
#define LOOKED_AT(property) 1
#endif

#define LEASE     2
#define FIRST     1
#define LATES     2     /* at any one time */
#define TRIES     2     /* attempts per acquisition */
#ifdef WIDE
#define PROCESSES 3
#else
#define PROCESSES 2
#endif
#define N         5     /* acquisitions: 0, 1 of process 0; 2, 3 of process 1; 4 of process 2 */
#define NOBODY    N

#define OWNER(h)  ((h) / 2)
#ifdef TOKEN_REUSED
#define TOKEN(h)  (OWNER(h) * 2)
#else
#define TOKEN(h)  (h)
#endif
#define BIT(a)    (1 << (a))
#define MAX(a, b) (((a) > (b)) -> (a) : (b))

#define NOTHING   0     /* no answer */
#define YES       1
#define NO        2

/* the server */
byte key = NOBODY;      /* the token */
byte ttl;
byte entry[N];          /* by token: the attempt that the queue knows; 0: not in the queue */
byte w;                 /* serve's walk */
bool demoted, away;     /* the old master; process 0's inbox is still there */

/* the network */
byte late[N];           /* by acquisition: attempts that may still run, as bits */
byte under_way;         /* how many */
byte message[N];        /* by token: attempts named by messages not yet received, as bits */

/* the processes: one seat each, used by the thread that has the turn */
byte turn[PROCESSES];           /* the thread that has the turn */
byte queued[PROCESSES];         /* the thread that waits for the turn */
byte seat[PROCESSES] = NOBODY;  /* the acquisition */
byte fresh[PROCESSES];          /* how many acquisitions there were */
bool granted[PROCESSES];
byte attempt[PROCESSES];        /* the last one sent */
byte refused[PROCESSES];        /* the last one whose refusal was received */
bool unanswered[PROCESSES];     /* an attempt may still run, or has run unseen */
byte first[PROCESSES], valid[PROCESSES];
byte inside[PROCESSES];
bool dead[PROCESSES];

/* the cleaners */
bool ended[N];
bool job[N];

#ifdef BARE_AFTER_QUEUEING
#define BARE(a) true
#else
#define BARE(a) ((a) == 1)
#endif

#define AWAY(p)   (away && (p) == 0)
#define CAN_HEAR(t) (entry[t] != 0 && !dead[OWNER(t)] && !AWAY(OWNER(t)))

/* Messages that can never let anybody in are hints: a waiter may ask at any time without one. */
#if defined(TOKEN_REUSED) || defined(GRANT_WITHOUT_ATTEMPT)
#define KEEP_MESSAGES 1
#else
#define KEEP_MESSAGES 0
#endif
#define forget_messages(p, but) \
	message[TOKEN(seat[p])] = (KEEP_MESSAGES -> message[TOKEN(seat[p])] : message[TOKEN(seat[p])] & (but))

inline hand_to(t) {
	key = t; ttl = FIRST;
	message[t] = ((ended[t] && !KEEP_MESSAGES) -> 0 : message[t] | BIT(entry[t]));
	entry[t] = 0
}

/* The key is free: any waiter that listens, or nobody. */
inline serve() {
	key = NOBODY; ttl = 0; w = 0;
	do
	:: w < N && CAN_HEAR(w) -> hand_to(w); break
#ifdef GRANT_WITHOUT_LISTENING
	:: w < N && entry[w] != 0 && AWAY(OWNER(w)) -> message[w] = message[w] | BIT(entry[w]); w++
#endif
	:: w < N -> w++                 /* not there, or passed over */
	:: w == N -> break
	od;
	w = 0
}

inline mine(h, got) {
	ttl = MAX(ttl, LEASE); entry[TOKEN(h)] = 0; got = YES
}

/* The key is free: serve in order, me in my place: somebody else, or me with a whole lease. */
inline s_acquire(h, a, got) {
	got = NO;
	if
	:: key == TOKEN(h) -> mine(h, got)
	:: key == NOBODY -> key = TOKEN(h); mine(h, got)
	:: key == NOBODY && BARE(a) -> key = TOKEN(h); ttl = LEASE; got = YES    /* bare */
	:: key == NOBODY -> entry[TOKEN(h)] = 0; serve();
		if
		:: key != NOBODY -> entry[TOKEN(h)] = a
		:: key == NOBODY -> key = TOKEN(h); mine(h, got)
		fi
	:: key != NOBODY && key != TOKEN(h) ->                          /* a waiter that is not heard keeps its place, and gets no new one */
		entry[TOKEN(h)] = ((AWAY(OWNER(h)) && entry[TOKEN(h)] == 0) -> 0 : a)
	:: key != NOBODY && key != TOKEN(h) && BARE(a)                  /* bare */
	fi
}

/* One that is not ours serves the queue, too, if nobody holds the lock. */
inline s_release(h) {
	if
	:: key == TOKEN(h) || key == NOBODY -> serve()
	:: key != TOKEN(h) && key != NOBODY
	fi
}

inline s_withdraw(h) {
	entry[TOKEN(h)] = 0;
#ifndef GRANT_NOT_PASSED_ON
	s_release(h)
#endif
}

inline leaves_the_seat(p) {
	forget_messages(p, 0);
	seat[p] = NOBODY; granted[p] = false; attempt[p] = 0; refused[p] = 0; unanswered[p] = false;
	first[p] = 0; valid[p] = 0
}

inline passes_the_turn(p) { turn[p] = queued[p]; queued[p] = 0 }

proctype Thread(byte p; byte locks; bool patient; bool faulty; bool mortal) {
	byte got;

next:
	if
	:: locks == 0 -> goto done
	:: locks > 0
	fi;
	atomic {
		locks--;
		if
		:: turn[p] == 0 -> turn[p] = _pid
		:: turn[p] != 0 -> queued[p] = _pid
		fi
	};
	if
	:: turn[p] == _pid
	:: atomic { turn[p] != _pid && !patient -> queued[p] = 0; goto next }
	fi;

	/* The turn is mine, and with it I got a lease, a place in the queue, or nothing. */
	if
	:: atomic { granted[p] && valid[p] > 0 -> inside[p]++; goto held }
	:: atomic { granted[p] && valid[p] == 0 ->
#ifdef HANDED_ON_PAST_VALIDITY
		valid[p] = LEASE; inside[p]++; goto held
#else
		goto release                    /* and give up: one more lock() would be one more round */
#endif
		}
	:: atomic { !granted[p] && seat[p] != NOBODY -> goto wait }
	:: atomic { seat[p] == NOBODY ->
		seat[p] = 2 * p + fresh[p]; fresh[p]++ }
	:: atomic { !patient ->                 /* it has given up meanwhile */
#ifdef TURN_NOT_PASSED_ON
		goto next
#else
		if
		:: granted[p] -> goto release
		:: !granted[p] && seat[p] != NOBODY -> goto gives_up
		:: seat[p] == NOBODY -> passes_the_turn(p); goto next
		fi
#endif
		}
	fi;

ask:
	if
	:: atomic { attempt[p]++; s_acquire(seat[p], attempt[p], got);
		if
		:: got == YES -> valid[p] = LEASE; first[p] = 0; granted[p] = true; inside[p]++; got = NOTHING; goto held
		:: got == NO -> first[p] = FIRST; refused[p] = attempt[p]; forget_messages(p, BIT(refused[p])); got = NOTHING
		fi }
	:: atomic { faulty && under_way < LATES -> attempt[p]++; unanswered[p] = true;
		under_way++; late[seat[p]] = late[seat[p]] | BIT(attempt[p]) }
	:: mortal -> goto dies
	fi;

wait:
	if
	:: attempt[p] < TRIES -> goto ask       /* the pause is over, or a hint came */
	:: atomic {
#ifdef GRANT_WITHOUT_ATTEMPT
		message[TOKEN(seat[p])] != 0 && refused[p] != 0 && first[p] > 0 ->
		message[TOKEN(seat[p])] = 0;
#else
		(message[TOKEN(seat[p])] & BIT(refused[p])) != 0 ->
		message[TOKEN(seat[p])] = message[TOKEN(seat[p])] & ~BIT(refused[p]);
#endif
#ifdef VALIDITY_FROM_WAKEUP
		valid[p] = FIRST;
#else
		valid[p] = first[p];
#endif
		if
		:: valid[p] > 0 -> granted[p] = true; first[p] = 0; inside[p]++; goto held
		:: valid[p] == 0 -> goto wait   /* too late: a hint */
		fi }
	:: goto gives_up
	:: mortal -> goto dies
	fi;

gives_up:
	atomic {
		if
		:: queued[p] != 0               /* the place goes to the next thread */
		:: queued[p] == 0 ->
			ended[seat[p]] = true;
			if
			:: faulty -> job[seat[p]] = true
			:: !faulty -> s_withdraw(seat[p])
			fi;
			leaves_the_seat(p)
		fi;
		passes_the_turn(p); goto next
	};

held:
	if
	:: atomic { key == TOKEN(seat[p]) && valid[p] > 0 && valid[p] < LEASE -> ttl = LEASE; valid[p] = LEASE; goto held }
	:: atomic { key != TOKEN(seat[p]) && valid[p] > 0 -> valid[p] = 0; goto held }
	:: atomic { inside[p]--;
		if
		:: queued[p] != 0 && valid[p] > 0 ->
#ifdef WITHDRAWN_WHILE_HANDED_ON
			job[seat[p]] = unanswered[p];
#endif
			passes_the_turn(p); goto next
		:: true
		fi }
	:: mortal -> inside[p]--; goto dies
	fi;

release:
	if
	:: atomic { s_release(seat[p]);
#ifndef UNANSWERED_NOT_WITHDRAWN
		job[seat[p]] = unanswered[p];
#endif
		ended[seat[p]] = true }
	:: atomic { faulty -> ended[seat[p]] = true; job[seat[p]] = true }      /* no answer: it may have run or not */
	fi;
	atomic { leaves_the_seat(p); passes_the_turn(p); goto next };

dies:
	atomic {
		dead[p] = true; ended[seat[p]] = true;
		leaves_the_seat(p); got = NOTHING; locks = 0
	};
done:	skip
}

/* What happens by itself for acquisition h: late requests, messages, forgotten entries, the cleaner. */
proctype Aftermath(byte h) {
	byte a, got;
end:
	do
	:: atomic { late[h] != 0 ->
		if
		:: (late[h] & BIT(1)) != 0 -> a = 1
		:: (late[h] & BIT(2)) != 0 -> a = 2
		fi;
		late[h] = late[h] & ~BIT(a); under_way--;
		if
		:: s_acquire(h, a, got)
		:: true
		fi;
		got = NOTHING; a = 0 }
#ifdef LISTENS_TOO_LATE
	:: atomic { message[h] != 0 && seat[OWNER(h)] == h && !granted[OWNER(h)] && refused[OWNER(h)] == 0 -> job[h] = true }
#endif
	:: atomic { job[h] -> s_withdraw(h);
		if
		:: late[h] == 0 -> job[h] = false
		:: late[h] != 0
		fi }
	od
}

#define LESS(x) x = ((x > 0) -> x - 1 : 0)

#if PROCESSES > 2
#define RUNS(p) (first[p] + valid[p] > 0)
#else
#define RUNS(p) false
#endif

active proctype Clock() {
end:
	do
	:: atomic { ttl > 0 || first[0] + valid[0] + first[1] + valid[1] > 0 || RUNS(2) ->
		if
		:: ttl == 1 -> key = NOBODY; ttl = 0
		:: ttl > 1 -> ttl--
		:: ttl == 0
		fi;
		LESS(first[0]); LESS(valid[0]);
		LESS(first[1]); LESS(valid[1]);
#if PROCESSES > 2
		LESS(first[2]); LESS(valid[2])
#endif
		}
	:: atomic { !demoted -> demoted = true; away = true }
	:: atomic { away -> away = false }
	od
}

#define INSIDE(p) (inside[p] > 0 && valid[p] > 0)

active proctype Monitor() {
end:
	do
	:: atomic { LOOKED_AT(OVERLAP) && INSIDE(0) && INSIDE(1) -> assert(false) }
#if PROCESSES > 2
	:: atomic { LOOKED_AT(OVERLAP) && INSIDE(0) && INSIDE(2) -> assert(false) }
	:: atomic { LOOKED_AT(OVERLAP) && INSIDE(1) && INSIDE(2) -> assert(false) }
#endif
	:: atomic { LOOKED_AT(OVERLAP) && inside[0] > 1 -> assert(false) }
	:: atomic { LOOKED_AT(ORPHAN) && key != NOBODY && ended[key] && !job[key] && !dead[OWNER(key)] -> assert(false) }
	od
}

init {
	atomic {
#ifdef WIDE
		run Thread(0, 1, false, true, false); run Thread(1, 1, false, false, false);
		run Thread(2, 1, false, false, true);
		run Aftermath(0)
#else
		run Thread(0, 1, false, true, false); run Thread(0, 1, true, true, false);
		run Thread(1, 2, false, false, true);
		run Aftermath(0); run Aftermath(1)
#endif
	}
}
