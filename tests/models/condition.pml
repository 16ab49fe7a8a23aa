/* A condition of a lock: wait, notify, and what becomes of a signal whose waiter is gone.
 *
 * Rules: the last paragraph of DESIGN section 7, and R3, R4, R5, R10, R20 as they bear on it.
 *
 * Steps and scripts. s_wait releases all holds and enters the condition's queue; s_notify checks the owner and
 * moves waiters to the lock's queue; s_give_up ends a wait that timed out or was interrupted, wherever it
 * stands, and leaves its thread in the lock's queue or with the lock; pass_on hands one signal to a
 * waiter, and is part of three scripts. Each is one step. A wait or a notify that got no answer is sent
 * again under the same number; the first copy may run at any later time, or never. A waiter that polls
 * and stands nowhere (it was taken for dead, or its grant ran out) goes to the lock's queue: it wakes up
 * without a signal.
 *
 * `owes[t]`: waiter t was signalled and has not yet been heard of since; the server keeps this until
 * the waiter's own first request, so that the signal outlives a grant to a dead or frozen waiter.
 *
 * Time: none. Who is valid when is the matter of queue.pml; here a lease only runs out for a thread that
 * is dead, or for a grant that nobody has taken up yet, and both may happen at any time.
 *
 * Sizes: three waiters with two holds each, which wait once and may die, time out or be interrupted at
 * any point; the first one's wait may stay unanswered; a notifier with two notifies, one or all. Enough:
 * a signal is passed from one to the next, so three see it passed on twice, and two signals may cross.
 *
 * Left out: the order of both queues (any waiter may be next, so every order is in); how death is seen (a dead
 * waiter may be taken for living, a living one for dead); late copies of s_give_up and of attempts
 * (they can only leave an entry without a thread: R5, in queue.pml); fences; the server restarted empty
 * (all waiters then stand nowhere, as one here may).
 *
 * Properties, with debt = the signals given and neither taken nor without anybody left to take them:
 * LOST: the debt is larger than the number of those who owe, or a wait goes on that was to return.
 * DOUBLED: it is smaller.
 * HELD: a thread is inside and the key is not its own.
 *
 * Must fail, by which property, and by which interleaving:
 * RELEASE_THEN_ENTER       LOST     W releases; S locks, notifies nobody, unlocks; W enters the queue.
 * SIGNAL_LOST_WITH_DEAD_WAITER LOST W1 and W2 wait; S notifies W1, which dies; nobody tells W2.
 * SIGNAL_LOST_WITH_GRANT   LOST     W1 is signalled and granted, and dies before it has heard; the grant
 *     runs out; nobody tells W2.
 * SIGNAL_LOST_WITH_TIMEOUT LOST     W1 times out at the moment of its signal; nobody tells W2.
 * DROPPED_WAITER_REENTERS  LOST     W is slow and taken for dead as S notifies; it polls, stands nowhere, and
 *     waits on.
 * NOTIFY_RUNS_TWICE        DOUBLED  S notifies, no answer, again under another number: two wake up.
 * HOLDS_NOT_RESTORED       HELD     W waits with two holds and returns with one: its first unlock frees the
 *     key of a thread that still counts on it.
 * WAIT_NOT_SUPERSEDED      HELD     W's wait is under way and unanswered; W times out, still owns the key, returns
 *     with it; the wait runs and releases it.
 */

#define LOST      1
#define DOUBLED   2
#define HELD      3
#ifdef ONLY
#define LOOKED_AT(property) (ONLY == (property))
#else
#define LOOKED_AT(property) 1
#endif

#define WAITERS   3
#define NOTIFIES  2
#define DEPTH     2             /* holds */

/* Tokens: BEFORE(t) is the lease with which t calls wait, WAIT(t) that wait and the lease after it. */
#define FREE      0
#define BEFORE(t) ((t) + 1)
#define WAIT(t)   ((t) + 4)
#define NOTIFIER(round) (7 + (round))

/* the server */
byte key;
bool waits[WAITERS];            /* in the condition's queue */
bool queued[WAITERS];           /* in the lock's queue */
bool owes[WAITERS];
bool seen;                      /* this notify has run */
byte x;                         /* pass_on's walk */

/* the network */
bool late_wait[WAITERS], late_notify;
byte round;                     /* of the notifier */

/* the threads */
bool dead[WAITERS];
bool taken[WAITERS];            /* the thread knows that its wait has the lock again */
byte holds[WAITERS];            /* what the thread believes: 0 while it waits */
byte token[WAITERS];

/* for the properties */
short debt;
bool begun[WAITERS];            /* its wait has released the lock, and nothing has ended it */
bool to_return[WAITERS];        /* its wait was ended without a signal, in place of one */

#define LIVES(t)    (waits[t] && !dead[t])
#define ANY(what)   (what(0) || what(1) || what(2))
#define COUNTS_ON(t) (begun[t] && !dead[t])

inline moves(t) {
	waits[t] = false; begun[t] = false; queued[t] = true; owes[t] = true
}

/* One signal to any waiter, dead ones that are not yet known to be dead included. If none is left that
 * lives, or is taken to live, there is nobody to signal. */
inline pass_on() {
	if
	:: waits[0] -> moves(0)
	:: waits[1] -> moves(1)
	:: waits[2] -> moves(2)
	:: !ANY(LIVES) ->
		waits[0] = false; waits[1] = false; waits[2] = false;
		debt = (ANY(COUNTS_ON) -> debt : debt - 1)
	:: ANY(LIVES) ->                /* all are slow and taken for dead: they will find out, and return */
		x = 0;
		do
		:: x < WAITERS && waits[x] -> waits[x] = false; begun[x] = false; to_return[x] = !dead[x]; x++
		:: x < WAITERS && !waits[x] -> x++
		:: x == WAITERS -> break
		od;
		x = 0; debt--
	fi
}

/* Waiter t's signal finds nobody there. */
inline signal_comes_back(t) {
	if
	:: owes[t] -> owes[t] = false; pass_on()
	:: else
	fi
}

/* The same where a variant forgets it; what is owed is then still owed, if anybody waits. */
inline signal_is_forgotten(t) {
	debt = ((owes[t] && !ANY(COUNTS_ON)) -> debt - 1 : debt); owes[t] = false
}

inline s_wait(t) {
	if
	:: key == BEFORE(t) -> key = FREE; begun[t] = true;
#ifndef RELEASE_THEN_ENTER
		waits[t] = true
#endif
	:: else                         /* has run already */
	fi
}

inline s_give_up(t) {
	begun[t] = false; to_return[t] = false;
	if
	:: key == BEFORE(t) ->          /* the wait has not run, and now never will */
#ifndef WAIT_NOT_SUPERSEDED
		key = WAIT(t)
#endif
	:: key == WAIT(t) || queued[t] ->
#ifdef SIGNAL_LOST_WITH_TIMEOUT
		signal_is_forgotten(t)
#else
		signal_comes_back(t)
#endif
	:: key != BEFORE(t) && key != WAIT(t) && !queued[t] -> waits[t] = false; queued[t] = true
	fi
}

inline s_notify(round) {
	if
	:: key == NOTIFIER(round) && !seen ->
#ifndef NOTIFY_RUNS_TWICE
		seen = true; debt++;
#else
		debt = (seen -> debt : debt + 1); seen = true;
#endif
		pass_on();
		if
		:: true                         /* notify_one */
		:: true ->                      /* notify_all */
			do
			:: waits[0] || waits[1] || waits[2] -> debt++; pass_on()
			:: else -> break
			od
		fi
#ifdef NOTIFY_RUNS_TWICE
	:: key == NOTIFIER(round) && seen && (waits[0] || waits[1] || waits[2]) -> pass_on()
#endif
	:: else
	fi
}

inline returns(t) { taken[t] = true; token[t] = WAIT(t); holds[t] = DEPTH }

#define NOWHERE(t) (!waits[t] && !queued[t] && key != WAIT(t) && key != BEFORE(t))

proctype Waiter(byte t) {
	atomic { key == FREE -> key = BEFORE(t); token[t] = BEFORE(t); holds[t] = DEPTH };
	holds[t] = 0;                           /* calls wait */

call:
	if
	:: atomic { s_wait(t) }
	:: atomic { t == 0 && !late_wait[t] -> late_wait[t] = true };
		if
		:: goto call
		:: goto gives_up
		:: goto dies
		fi
	fi;
#ifdef RELEASE_THEN_ENTER
	waits[t] = true;
#endif

waiting:
	if
	:: atomic { key == WAIT(t) ->           /* the grant, or a poll that finds it; the server hears of it */
		debt = (owes[t] -> debt - 1 : debt); owes[t] = false; returns(t); goto unlocks }
	:: atomic { NOWHERE(t) ->
#ifdef DROPPED_WAITER_REENTERS
		waits[t] = true; begun[t] = true;
#else
		queued[t] = true; begun[t] = false; to_return[t] = false;
#endif
		goto waiting }
	:: goto gives_up
	:: goto dies
	fi;

gives_up:
	atomic { s_give_up(t) };
locks_again:
	if
	:: atomic { key == WAIT(t) -> returns(t); goto unlocks }
#ifdef WAIT_NOT_SUPERSEDED
	:: atomic { key == BEFORE(t) -> holds[t] = DEPTH; goto unlocks }
#endif
	:: atomic { NOWHERE(t) -> queued[t] = true; goto locks_again }
	:: goto dies
	fi;

unlocks:
	holds[t]--;                             /* the first unlock */
#ifdef HOLDS_NOT_RESTORED
	key = FREE;                             /* what the lock counted was 1 */
#endif
	if
	:: atomic { holds[t]--; token[t] = FREE; key = FREE; goto done }
	:: goto dies
	fi;

dies:	atomic { dead[t] = true; holds[t] = 0; taken[t] = false; to_return[t] = false; begun[t] = false; token[t] = FREE };
done:	skip
}

proctype Notifier() {
	do
	:: round < NOTIFIES ->
		atomic { key == FREE -> key = NOTIFIER(round) };
again:		if
		:: atomic { s_notify(round) }
		:: atomic { !late_notify -> late_notify = true; goto again }
		fi;
		atomic { key = FREE; seen = false; late_notify = false; round++ }
	:: else -> break
	od
}

/* What the server does as others come by, and requests that are late. */
proctype Aftermath(byte t) {
end:
	do
	:: atomic { late_wait[t] -> late_wait[t] = false;
		if
		:: s_wait(t)
		:: true
		fi }
	:: atomic { key == FREE && queued[t] -> queued[t] = false; key = WAIT(t) }      /* granted: whoever listens */
	:: atomic { key == FREE && queued[t] -> queued[t] = false;                      /* dead, or taken for it */
#ifdef SIGNAL_LOST_WITH_DEAD_WAITER
		signal_is_forgotten(t)
#else
		signal_comes_back(t)
#endif
		}
	:: atomic { key == WAIT(t) && !taken[t] -> key = FREE;                          /* the first lease runs out */
#ifdef SIGNAL_LOST_WITH_GRANT
		signal_is_forgotten(t)
#else
		signal_comes_back(t)
#endif
		}
	:: atomic { key == BEFORE(t) && dead[t] -> key = FREE }
	:: atomic { t == 0 && late_notify -> late_notify = false;
		if
		:: s_notify(round)
		:: true
		fi }
	od
}

#define OWED (owes[0] + owes[1] + owes[2])
#define ROBBED(t) (holds[t] > 0 && key != token[t])
#define GOES_ON(t) (to_return[t] && waits[t])

active proctype Monitor() {
end:
	do
	:: atomic { LOOKED_AT(LOST) && (debt > OWED || ANY(GOES_ON)) -> assert(false) }
	:: atomic { LOOKED_AT(DOUBLED) && debt < OWED -> assert(false) }
	:: atomic { LOOKED_AT(HELD) && ANY(ROBBED) -> assert(false) }
	od
}

init {
	atomic {
		run Waiter(0); run Waiter(1); run Waiter(2); run Notifier();
		run Aftermath(0); run Aftermath(1); run Aftermath(2)
	}
}
