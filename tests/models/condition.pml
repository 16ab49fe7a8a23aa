/* A condition of a lock: wait, notify, and what happens to a notification whose waiter is gone.
 *
 * Rules: R37 (a notified waiter counts once it has asked by itself; until then its notification stays with the
 * condition), and R3, R4, R5, R10, R20 where they concern it.
 *
 * Steps and scripts. s_wait releases all holds and enters the condition's line; s_notify checks the owner and
 * moves waiters to the lock's queue; a question (wait.lua, acquire.lua) tells a waiter its state, and marks it as one
 * that has asked; s_give_up ends a wait that timed out or was interrupted; s_withdraw is the cleaner's, for a
 * client that is closed; pass_on hands one notification to a waiter, and is part of most of them. Each is one
 * step. A wait or a notify that got no answer is sent again, the notify under the same number; the first copy may
 * run at any later time, or never. A waiter that is in no line or queue (it was taken for dead, or its grant ran out)
 * goes to the lock's queue: it wakes up without a notification.
 *
 * `owes[t]`: waiter t was notified, and the server has received no command from it since it got the lock. This
 * outlives its place in the queue, its grant, and the waiter. `fit[t]`: who waited when the notification was given, as
 * bits. What the scripts do along the way (serve, review) may happen here at any time.
 *
 * Time: none. Validity is checked by queue.pml; here a lease only runs out for a thread that
 * is dead, or for a grant that nobody has used yet, and both may happen at any time.
 *
 * Sizes: three waiters with two holds each, which wait once and may die, time out or be interrupted at any point; the
 * clients of the first two may be closed; the first one's wait and question may stay unanswered; a notifier with two notifies, one or all.
 * Enough: a notification is passed from one to the next, so three see it passed on twice, and two may cross.
 *
 * Left out: the order of line and queue (any waiter may be next, so every order is included), and with it who is marked
 * silent; how death is seen (a dead waiter may be taken for living, a living one for dead); who listens; late copies of
 * attempts (they can only leave an entry without a thread: R5, in queue.pml); fences; that the code uses up a notification
 * only with the first command under the lease that the wait led to, so that the death of a holder before that command
 * wakes another waiter, too; a server that restarts empty (then all waiters are in no line or queue, as one may be here).
 *
 * Properties, with debt = the notifications that were given, are not yet taken, and that somebody is left to take:
 * LOST: the debt is larger than the number of those who owe, or a wait goes on that should return.
 * DOUBLED: it is smaller.
 * STALE: a thread that no longer waits is in the line: it would swallow a notification.
 * LATER: a waiter gets a notification that was given before it came.
 * HELD: a thread is inside and the key is not its own.
 *
 * Must fail, by which property, and by which interleaving:
 * RELEASE_THEN_ENTER       LOST     W releases; S locks, notifies nobody, unlocks; W enters the line.
 * SIGNAL_LOST_WITH_DEAD_WAITER LOST W1 and W2 wait; S notifies W1, which dies; nobody tells W2.
 * SIGNAL_LOST_WITH_GRANT   LOST     W1 is notified and granted, and dies before the message arrives; the grant runs out;
 *     nobody tells W2.
 * SIGNAL_LOST_WITH_TIMEOUT LOST     W1 times out at the moment of its notification; nobody tells W2.
 * SIGNAL_LOST_WITH_CLOSE   LOST     W1 is notified, and its client is closed; nobody tells W2.
 * TAKEN_BACK_ALONE         LOST     W1 does not ask; it is taken back, and nobody else is there to get its notification.
 * ASKED_IS_TAKEN_BACK      STALE    W1 is notified, asks, and is cut off; it is taken back, W2 notified; W1 has the lock.
 * PASSED_TO_LATER          LATER    W1 is notified and dies; W2 begins to wait, and gets the notification.
 * DROPPED_WAITER_REENTERS  LOST     W is slow and taken for dead as S notifies; it asks, is in no line or queue, and
 *     goes on waiting.
 * NOTIFY_RUNS_TWICE        DOUBLED  S notifies, gets no answer, and notifies again under another number: two wake up.
 * HOLDS_NOT_RESTORED       HELD     W waits with two holds and returns with one: its first unlock frees the
 *     key of a thread that still relies on it.
 * WAIT_NOT_SUPERSEDED      HELD     W's wait is under way and unanswered; W times out, still owns the key, returns
 *     with it; the wait runs and releases it.
 */

#define LOST      1
#define DOUBLED   2
#define HELD      3
#define STALE     4
#define LATER     5
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
#define BIT(t)    (1 << (t))

/* the server */
byte key;
bool waits[WAITERS];            /* in the condition's line */
bool queued[WAITERS];           /* in the lock's queue */
bool asked[WAITERS];            /* it has asked by itself */
bool owes[WAITERS];
byte fit[WAITERS];
bool seen;                      /* this notify has run */
byte given;                     /* who waited when it was given */

/* the network */
bool late_wait, late_notify;    /* the first waiter's */
byte round;                     /* of the notifier */

/* the threads */
bool dead[WAITERS];
bool taken[WAITERS];            /* the thread knows that its wait has the lock again */
bool left[WAITERS];             /* it has left its condition loop */
byte holds[WAITERS];            /* what the thread believes: 0 while it waits */
byte token[WAITERS];

/* for the properties */
short debt;
bool begun[WAITERS];            /* its wait has released the lock, and nothing has ended it */
bool to_return[WAITERS];        /* its wait was ended without a notification, in place of one */
bool later;

#define ANY(what, m) (what(0, m) || what(1, m) || what(2, m))
#ifdef PASSED_TO_LATER
#define MAY_HAVE(t, m) waits[t]
#else
#define MAY_HAVE(t, m) (waits[t] && ((m) & BIT(t)) != 0)
#endif
#define FITS(t) ((waits[t] || begun[t]) -> BIT(t) : 0)
#define COUNTS_ON(t, m) (begun[t] && !dead[t] && ((m) & BIT(t)) != 0)

inline moves(t, m) {
	later = (later || ((m) & BIT(t)) == 0);
	waits[t] = false; begun[t] = false; queued[t] = true; asked[t] = false; owes[t] = true; fit[t] = m
}

/* One notification, given when those in m waited, to any of them that still does. */
inline pass_on(m) {
	if
	:: MAY_HAVE(0, m) -> moves(0, m)
	:: MAY_HAVE(1, m) -> moves(1, m)
	:: MAY_HAVE(2, m) -> moves(2, m)
	:: !ANY(MAY_HAVE, m) -> debt = (ANY(COUNTS_ON, m) -> debt : debt - 1)
	fi
}

/* Waiter t will not come for its notification. */
inline comes_back(t) {
	if
	:: owes[t] -> owes[t] = false; pass_on(fit[t]); fit[t] = (owes[t] -> fit[t] : 0)
	:: !owes[t]
	fi
}

/* The same in a variant that forgets it: what is owed is then still owed, if anybody waits for it. */
inline is_forgotten(t) {
	debt = ((owes[t] && !ANY(COUNTS_ON, fit[t])) -> debt - 1 : debt); owes[t] = false; fit[t] = 0
}

/* Waiter t has the lock, and the server receives a command from it. */
inline settles(t) {
	debt = (owes[t] -> debt - 1 : debt); owes[t] = false; fit[t] = 0
}

inline s_wait(t) {
	if
	:: key == BEFORE(t) -> key = FREE; begun[t] = true;
#ifndef RELEASE_THEN_ENTER
		waits[t] = true
#endif
	:: key != BEFORE(t)                     /* has run already */
	fi
}

/* Leaves the line, for the queue. A notification that came first wins. */
inline s_give_up(t) {
	begun[t] = (queued[t] -> begun[t] : false); to_return[t] = false; left[t] = true;
#ifdef SIGNAL_LOST_WITH_TIMEOUT
	is_forgotten(t);
#endif
	waits[t] = false; queued[t] = (key != WAIT(t)); asked[t] = true
}

inline s_withdraw(t) {
	waits[t] = false; begun[t] = false; queued[t] = false; asked[t] = false;
#ifdef SIGNAL_LOST_WITH_CLOSE
	is_forgotten(t);
#else
	comes_back(t);
#endif
	key = ((key == WAIT(t) || key == BEFORE(t)) -> FREE : key)
}

inline s_notify(round) {
	if
	:: key == NOTIFIER(round) && !seen ->
#ifndef NOTIFY_RUNS_TWICE
		seen = true; debt++;
#else
		debt = (seen -> debt : debt + 1); seen = true;
#endif
		given = FITS(0) + FITS(1) + FITS(2);
		pass_on(given);
		if
		:: true                         /* notify_one */
		:: true ->                      /* notify_all */
			do
			:: waits[0] || waits[1] || waits[2] -> debt++; pass_on(given)
			:: else -> break
			od
		fi;
		given = 0
#ifdef NOTIFY_RUNS_TWICE
	:: key == NOTIFIER(round) && seen && (waits[0] || waits[1] || waits[2]) -> pass_on(7)
#endif
	:: else
	fi
}

inline returns(t) { taken[t] = true; left[t] = true; token[t] = WAIT(t); holds[t] = DEPTH }

#define NOWHERE(t) (!waits[t] && !queued[t] && key != WAIT(t) && key != BEFORE(t))

proctype Waiter(byte t) {
	atomic { key == FREE -> key = BEFORE(t); token[t] = BEFORE(t); holds[t] = DEPTH };
	holds[t] = 0;                           /* calls wait */

call:
	if
	:: atomic { s_wait(t) }
	:: atomic { t == 0 && !late_wait -> late_wait = true };
		if
		:: goto call
#ifdef WAIT_NOT_SUPERSEDED
		:: atomic { key == BEFORE(t) -> holds[t] = DEPTH; goto unlocks }
#endif
		:: goto dies
		fi
	fi;
#ifdef RELEASE_THEN_ENTER
	waits[t] = true;
#endif

waiting:
	if
	:: atomic { key == WAIT(t) -> settles(t); returns(t); goto unlocks }            /* asks, and gets it */
	:: atomic { key == WAIT(t) -> returns(t); goto first_word }                     /* the message */
	:: atomic { t == 0 && queued[t] && !asked[t] -> asked[t] = true; goto waiting } /* asks, and the answer is lost */
	:: atomic { queued[t] -> asked[t] = true; left[t] = true; goto queues }         /* asks, and was notified */
	:: atomic { NOWHERE(t) ->
#ifdef DROPPED_WAITER_REENTERS
		waits[t] = true; begun[t] = true; goto waiting
#else
		queued[t] = true; asked[t] = true; begun[t] = false; to_return[t] = false; left[t] = true; goto queues
#endif
		}
	:: atomic { s_give_up(t); goto queues }
	:: atomic { t < 2 -> s_withdraw(t); goto dies }                                /* its client is closed */
	:: goto dies
	fi;

queues:
	if
	:: atomic { key == WAIT(t) -> settles(t); returns(t); goto unlocks }
	:: atomic { key == WAIT(t) -> returns(t); goto first_word }
	:: atomic { key == FREE && queued[t] -> queued[t] = false; asked[t] = false; key = WAIT(t); settles(t); returns(t); goto unlocks }
	:: atomic { NOWHERE(t) -> queued[t] = true; asked[t] = true; goto queues }
	:: atomic { t < 2 -> s_withdraw(t); goto dies }
	:: goto dies
	fi;

first_word:                                     /* an extend, a release, a wait, a notify */
	if
	:: atomic { settles(t) }
	:: goto dies
	fi;

unlocks:
	holds[t]--;                             /* the first unlock */
#ifdef HOLDS_NOT_RESTORED
	key = FREE;                             /* the lock's count was 1 */
#endif
	if
	:: atomic { holds[t]--; token[t] = FREE; key = FREE; goto done }
	:: goto dies
	fi;

dies:	atomic { dead[t] = true; holds[t] = 0; taken[t] = false; left[t] = false; to_return[t] = false; begun[t] = false; token[t] = FREE };
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

/* What the server does when others call it, and late requests. */
proctype Aftermath(byte t) {
end:
	do
	:: atomic { t == 0 && late_wait -> late_wait = false;
		if
		:: s_wait(t)
		:: true
		fi }
	:: atomic { key == FREE && queued[t] -> queued[t] = false; asked[t] = false; key = WAIT(t) }    /* served */
	:: atomic { queued[t] && key != WAIT(t) ->                                      /* dead, or taken for dead */
		queued[t] = false; asked[t] = false;
#ifdef SIGNAL_LOST_WITH_DEAD_WAITER
		is_forgotten(t)
#else
		comes_back(t)
#endif
		}
	:: atomic { queued[t] && owes[t] &&                                             /* taken back */
#ifndef ASKED_IS_TAKEN_BACK
		!asked[t] &&
#endif
#ifndef TAKEN_BACK_ALONE
		ANY(MAY_HAVE, fit[t]) &&
#endif
		true ->
		queued[t] = false; asked[t] = false; begun[t] = !dead[t];
#ifdef TAKEN_BACK_ALONE
		is_forgotten(t);
#else
		comes_back(t);
#endif
		waits[t] = true }
	:: atomic { queued[t] && asked[t] && owes[t] && ANY(MAY_HAVE, fit[t]) -> comes_back(t) }  /* not listening at its turn */
	:: atomic { waits[t] -> waits[t] = false; begun[t] = false; to_return[t] = !dead[t] }   /* as in the queue */
	:: atomic { key == WAIT(t) && !taken[t] -> key = FREE;                          /* the first lease runs out */
#ifdef SIGNAL_LOST_WITH_GRANT
		is_forgotten(t)
#endif
		}
	:: atomic { owes[t] && !queued[t] && key != WAIT(t) -> comes_back(t) }          /* reviewed */
	:: atomic { key == BEFORE(t) && dead[t] -> key = FREE }
	:: atomic { t == 0 && late_notify -> late_notify = false;
		if
		:: s_notify(round)
		:: true
		fi }
	od
}

#define OWED (owes[0] + owes[1] + owes[2])
#define ROBBED(t, m) (holds[t] > 0 && key != token[t])
#define GOES_ON(t, m) (to_return[t] && waits[t])
#define IN_VAIN(t, m) (left[t] && waits[t])

active proctype Monitor() {
end:
	do
	:: atomic { LOOKED_AT(LOST) && (debt > OWED || ANY(GOES_ON, 0)) -> assert(false) }
	:: atomic { LOOKED_AT(DOUBLED) && debt < OWED -> assert(false) }
	:: atomic { LOOKED_AT(HELD) && ANY(ROBBED, 0) -> assert(false) }
	:: atomic { LOOKED_AT(STALE) && ANY(IN_VAIN, 0) -> assert(false) }
	:: atomic { LOOKED_AT(LATER) && later -> assert(false) }
	od
}

init {
	atomic {
		run Waiter(0); run Waiter(1); run Waiter(2); run Notifier();
		run Aftermath(0); run Aftermath(1); run Aftermath(2)
	}
}
