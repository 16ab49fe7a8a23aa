/* How the cleaner knows that nothing can arrive at a node any more (R5, R32), with time.
 *
 * A client has sent a command that creates (an attempt or a re-grant: SET NX PX) to one node, and had no reply; the
 * connection is closed. The node may be frozen for any time. What waits in its sockets it reads within ARRIVES ticks
 * of running again, or never. The hold has ended. The cleaner sends withdrawals, one a tick at the most: one that
 * cannot be sent (no connection), one that is sent and not answered (it waits in the node's sockets, too), or one that
 * is answered.
 *
 * The rule: the cleaner ends at an answer that comes SETTLE or more after the first answer since the last withdrawal
 * that failed, in whatever way. In short: when all withdrawals of ten seconds were answered.
 *
 * The node may freeze again, FREEZES times; only time in which it runs counts for ARRIVES.
 *
 * ORPHAN: the cleaner has ended, and the key is there, or can still come.
 *
 * Must fail:
 * FIRST_ANSWER_ENDS   ORPHAN  "not ours" is believed at once.
 * COUNTS_FROM_SENDING ORPHAN  the node is frozen for longer than SETTLE; the cleaner counts from the last command that
 *     it sent, ends with the first answer, and the node reads the old command after that.
 * UNSENT_IS_TIME      ORPHAN  nothing can be sent for SETTLE, and the cleaner gives up.
 * UNSENT_IS_NOTHING   ORPHAN  the node answers once and freezes again, before it has read the old command; connecting
 *     fails for SETTLE; the next answer ends it.
 * SETTLE_ONCE         ORPHAN  the node answers once and freezes again; a withdrawal goes unanswered; the cleaner
 *     counts from the first answer of all.
 */
#define ORPHAN 1
#define SETTLE 4
#define ARRIVES 1
#define LEASE  3
#define FREEZES 2
#define NEVER  9

bool frozen, pending = true;      /* pending: the SET waits in a socket of the node */
byte since;                                /* how long the node has run, up to ARRIVES */
byte freezes;
byte ttl;
bool ended, dead;
byte clock_ = NEVER;                       /* since the first answer that counts; NEVER: none yet */
byte sent = 0;                             /* since the last command that had no answer */
bool tried;

#define LESS(v) v = (v > 0 -> v - 1 : 0)
#define MORE(v, m) v = (v < m -> v + 1 : v)

active proctype Node() {
end:	do
	:: atomic { !frozen && pending -> pending = false; ttl = (ttl > 0 -> ttl : LEASE) }     /* reads it */
	:: atomic { !frozen && pending -> pending = false }                                     /* it was lost */
	:: atomic { !frozen && freezes < FREEZES -> frozen = true; freezes++ }
	:: atomic { frozen -> frozen = false }
	od
}

active proctype Cleaner() {
end:	do
	:: atomic { !ended && !tried ->
		tried = true;
		if
		:: !frozen -> ttl = 0;                                          /* answered */
			if
			:: clock_ == NEVER -> clock_ = 0
			:: else
			fi;
#ifdef FIRST_ANSWER_ENDS
			ended = true
#elif defined(COUNTS_FROM_SENDING)
			ended = (sent >= SETTLE)
#else
			ended = (clock_ != NEVER && clock_ >= SETTLE)
#endif
		:: true ->                                                      /* sent, not answered */
#ifndef SETTLE_ONCE
			clock_ = NEVER;
#endif
			sent = 0;
			if
			:: !frozen -> ttl = 0
			:: true
			fi
		:: true ->                                                      /* not sent */
#ifndef UNSENT_IS_NOTHING
			clock_ = NEVER
#else
			skip
#endif
		fi;
#ifdef UNSENT_IS_TIME
		ended = (ended || sent >= SETTLE)
#endif
		}
	:: atomic { !ended && !dead -> dead = true; ended = true }
	od
}

active proctype Clock() {
end:	do
	:: atomic { !(pending && !frozen && since >= ARRIVES) && (tried || ended) ->    /* it is read in time */
		tried = false;
		LESS(ttl); MORE(sent, SETTLE);
		clock_ = (clock_ == NEVER -> NEVER : (clock_ < SETTLE -> clock_ + 1 : clock_));
		since = ((frozen || since == ARRIVES) -> since : since + 1) }
	od
}

active proctype Monitor() {
end:	do
	:: atomic { ended && !dead && (pending || ttl > 0) -> assert(false) }
	od
}
