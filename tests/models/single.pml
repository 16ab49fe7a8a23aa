/* The single-server rules: one key, two clients, a network that loses and delays.
 *
 * Rules: R1 validity from asked_at; R2 checked again after every reply; R3 fresh token; R4 acquire
 * idempotent by token; R5 withdraw what may have run; R6 no reply of an older request; R7 renewal
 * compares and only extends; R10 compare before delete; R12 a repeated release.
 *
 * Steps and scripts. s_acquire is the acquire (`SET NX PX`, or "mine": the lease set again),
 * s_extend a renewal or `extend(d)`, s_release an unlock, s_withdraw the cleaner's. Each runs in one
 * step, as Redis runs a script. A call is three steps (asked; run at the server; reply heard) with
 * anything in between. A call that got no answer in time is left on the way (`late_…`): it runs at
 * any later time, also at once, or never. Its answer is then ignored (R6).
 *
 * Time. Only differences matter, so every time is a countdown and one Clock step moves them all:
 * `ttl` at the server, `left` = the rest of a lease granted to the request now under way
 * (asked_at + lease - now), `valid` = the rest of the hold's validity. So the clock has no end.
 * Nothing is urgent: a client, the network or the cleaner may sleep through any number of ticks,
 * so every pause, freeze and timeout is a special case of that.
 *
 * Sizes: 2 clients; one has a hold with every step (2 attempts, an extend, 2 releases, death) and then
 * a plain one (1 attempt), the other has 2 attempts and 2 releases; 2 late requests at any one time;
 * a lease of 2 ticks, 3 after an extend. Enough, because every property speaks about one key and at
 * most two tokens; every race known needs at most two late messages; and a lease of 2 ticks has a
 * beginning, a middle and an end. Every step for every hold made ten times the states
 * (8.9 million), and also found no error.
 *
 * Left out: drift (both sides count the same ticks; the 1 % + 2 ms of R1 pay for rates that differ),
 * pauses (an attempt may come at any time, which includes the right one), what happens inside a
 * script, keys lost or deleted by a third party (no promise is made then), how the cleaner knows that a
 * request cannot run any more (here it is simply told).
 *
 * Properties, each checked in every state (`-DONLY=name` leaves the others out):
 * OVERLAP: two clients inside and valid at the same time
 * GAP: a client inside and valid although another one has been inside and valid since it came in
 * STRANGER: a release deletes a key that another hold made
 * ORPHAN: the key is held for a hold that has ended, and no cleaner will withdraw it
 * ENDLESS: such a key lives on for longer than its last delivery + the lease
 * TOLD: an unlock is reported as released, but the lease had run out
 *
 * Must fail, by which property, and by which interleaving:
 * TOKEN_REUSED            STRANGER unlock of hold 1 unanswered, a copy on the way; hold 2 granted with
 *     the same token; the copy runs and deletes hold 2.
 * VALIDITY_FROM_REPLY     OVERLAP  A asks, granted, the reply arrives after the lease; B is granted; A
 *     receives "granted".
 * RENEWAL_CREATES         ORPHAN   extend unanswered, a copy on the way; A unlocks; the copy runs: a
 *     key for nobody.
 * DELETE_WITHOUT_COMPARE  STRANGER A's lease runs out, B is granted, A unlocks: B's key is gone.
 * NO_WITHDRAW             ORPHAN   attempt 1 unanswered, A gives up; attempt 1 runs: a key for nobody.
 * WITHDRAW_ONCE           ORPHAN   the same, but withdrawn once, while attempt 1 was still on its way.
 * WITHDRAW_TOO_EARLY      OVERLAP  attempt 1 unanswered and withdrawn at once, attempt 2 granted with
 *     the same token: the withdrawal deletes a lease that is held.
 * LATE_COPY_SHORTENS      OVERLAP  attempt 1 late, attempt 2 granted, extend to 3 ticks answered;
 *     attempt 1 runs, finds "mine" and sets 2 ticks: the server forgets before the holder does.
 * LATE_REPLY_BELIEVED     OVERLAP  attempt 1 granted, its reply late; lease over, B granted; A asks
 *     again and takes the reply of attempt 1 for that of attempt 2.
 * VALIDITY_REVIVED        GAP      A's validity runs out, B holds and unlocks, a late attempt of A
 *     makes the key A's again, A's extend says yes: A goes on as if nobody else had held.
 * RELEASED_WHEN_INVALID   TOLD     unlock unanswered and never run, the lease runs out, the repeated
 *     unlock receives "not ours" and is reported as released.
 * LEASE_IN_TWO_STEPS      ENDLESS  SETNX, then the expiry in a second command; A dies in between.
 */

#define OVERLAP   1
#define GAP       2
#define STRANGER  3
#define ORPHAN    4
#define ENDLESS   5
#define TOLD      6
#ifdef ONLY
#define LOOKED_AT(property) (ONLY == (property))
#else
#define LOOKED_AT(property) 1
#endif

#define LEASE     2
#define LONG      3     /* extend(d) with a d above the lease */
#define FOREVER   7
#define HOLDS     2     /* at most, per client */
#define N         3     /* holds in all: 0 and 1 are client 0's, 2 is client 1's */
#define LATES     2     /* at any one time */
#define ATTEMPTS(h) ((h) == 1 -> 1 : 2)
#define EXTENDS(h)  ((h) == 0)
#define MORTAL(c)   ((c) == 0)

#define OWNER(h)  ((h) / HOLDS)
#ifdef TOKEN_REUSED
#define TOKEN(h)  (OWNER(h) + 1)
#else
#define TOKEN(h)  ((h) + 1)
#endif
#define MAX(a, b) (((a) > (b)) -> (a) : (b))

#define NOTHING   0     /* no answer */
#define YES       1
#define NO        2

/* the server */
byte key;               /* the token; 0: free */
byte ttl;
byte by;                /* the hold that made the key: only the properties read it */

/* the network: copies that may still run */
byte late_acquire[N], late_extend[N], late_release[N];
byte under_way;         /* their sum */
#ifdef LATE_REPLY_BELIEVED
bool late_reply[N];
#endif

/* the clients */
byte left[2], valid[2];
bool inside[2];         /* between "acquired" and the call of unlock */
bool overtaken[2];      /* another client has been inside and valid since we came in */
bool dead[2];

/* the cleaners */
bool ended[N];          /* nobody will wait for, use or release this hold any more */
bool job[N];            /* to be withdrawn until it cannot run any more */
bool by_us[N];          /* a release of this hold has deleted the key */

inline forget() { key = 0; ttl = 0; by = 0 }

inline s_acquire(h, got) {
	got = NOTHING;
	if
	:: key == 0 ->
		key = TOKEN(h); by = h; got = YES;
#ifdef LEASE_IN_TWO_STEPS
		ttl = FOREVER
#else
		ttl = LEASE
#endif
	:: key == TOKEN(h) ->
		got = YES;
#ifdef LATE_COPY_SHORTENS
		ttl = LEASE
#else
		ttl = MAX(ttl, LEASE)
#endif
	:: else -> got = NO
	fi
}

inline s_extend(h, got) {
	got = NOTHING;
	if
	:: key == TOKEN(h) -> ttl = MAX(ttl, LONG); got = YES
#ifdef RENEWAL_CREATES
	:: key == 0 -> key = TOKEN(h); by = h; ttl = LONG; got = YES
#endif
	:: else -> got = NO
	fi
}

inline s_release(h, got) {
	got = NOTHING;
	if
#ifdef DELETE_WITHOUT_COMPARE
	:: key != 0 ->
#else
	:: key == TOKEN(h) ->
#endif
		assert(by == h || !LOOKED_AT(STRANGER)); /* never a stranger's */
		by_us[h] = !ended[h];
		forget(); got = YES
	:: else -> got = NO
	fi
}

inline leaves_a_copy(copies) {
	if
	:: under_way < LATES -> under_way++; copies++
	:: true
	fi
}

inline ends(h, c) {
	ended[h] = true; by_us[h] = false;
#ifndef NO_WITHDRAW
	job[h] = job[h] || unanswered;
#endif
	valid[c] = 0; left[c] = 0; got = NOTHING; unanswered = false; unsure = false
}

proctype Client(byte c; byte first; byte last) {
	byte h = first, attempt, got;
	bool unanswered;        /* a request of this hold may still run, or has run unseen */
	bool unsure;            /* a release of this hold was not answered */
	bool extended;

next:
	if
	:: h > last -> goto done
	:: else
	fi;

ask:
	atomic { left[c] = LEASE; attempt++ };
	if
	:: atomic { s_acquire(h, got) }                         /* run; its reply is on the way */
	:: atomic { leaves_a_copy(late_acquire[h]) }            /* not run yet, or lost */
#ifdef LATE_REPLY_BELIEVED
	:: atomic { late_reply[h] -> got = YES }
#endif
	fi;
	if
	:: atomic { got == YES && left[c] > 0 ->
#ifdef VALIDITY_FROM_REPLY
		valid[c] = LEASE;
#else
		valid[c] = left[c];
#endif
#ifdef LEASE_IN_TWO_STEPS
		ttl = ((key == TOKEN(h)) -> LEASE : ttl);
#endif
		left[c] = 0; got = NOTHING; attempt = 0;
		inside[c] = true; overtaken[c] = false; overtaken[1 - c] = inside[1 - c] }
#ifdef VALIDITY_FROM_REPLY
	:: atomic { got == YES && left[c] == 0 ->
		valid[c] = LEASE; got = NOTHING; attempt = 0;
		inside[c] = true; overtaken[c] = false; overtaken[1 - c] = inside[1 - c] }
#else
	:: atomic { got == YES && left[c] == 0 ->               /* too late: the same as no answer */
		got = NOTHING; unanswered = true; goto again }
#endif
	:: atomic { got == NO -> got = NOTHING; left[c] = 0; goto again }
	:: atomic { got == NOTHING -> left[c] = 0; unanswered = true;
#ifdef WITHDRAW_TOO_EARLY
		job[h] = true;
#endif
		goto again }
	:: MORTAL(c) -> goto dies
	fi;
	goto held;

again:
	if
	:: attempt < ATTEMPTS(h) -> goto ask
	:: atomic { ends(h, c); attempt = 0; h++; goto next }
	fi;

held:
	if
	:: EXTENDS(h) && !extended ->
		atomic { extended = true; left[c] = LONG };
		if
		:: atomic { s_extend(h, got) }
		:: atomic { leaves_a_copy(late_extend[h]) }
		fi;
		if
		:: atomic { got == YES ->
#ifdef VALIDITY_REVIVED
			valid[c] = left[c];
#else
			valid[c] = ((valid[c] > 0) -> MAX(valid[c], left[c]) : 0);
#endif
			left[c] = 0; got = NOTHING }
		:: atomic { got == NO -> valid[c] = 0; left[c] = 0; got = NOTHING }
		:: atomic { got == NOTHING -> left[c] = 0 }
		fi;
		goto held
	:: atomic { inside[c] = false; extended = false; overtaken[c] = false }
	:: MORTAL(c) -> goto dies
	fi;

	/* unlock, at most twice */
release:
	if
	:: atomic { s_release(h, got) }
	:: atomic { leaves_a_copy(late_release[h]) }
	fi;
	if
	:: atomic { got == YES -> ends(h, c) }
	:: atomic { got == NO ->
#ifdef RELEASED_WHEN_INVALID
		assert(!unsure || by_us[h] || !LOOKED_AT(TOLD));
#else
		assert(!(unsure && valid[c] > 0) || by_us[h] || !LOOKED_AT(TOLD));
#endif
		ends(h, c) }
	:: atomic { got == NOTHING && !unsure -> unsure = true; goto release }
	:: atomic { got == NOTHING && unsure -> unanswered = true; ends(h, c) }
	:: MORTAL(c) -> goto dies
	fi;
	h++;
	goto next;

dies:   /* killed: only its requests that are on their way go on */
	atomic {
		inside[c] = false; valid[c] = 0; left[c] = 0; dead[c] = true; overtaken[c] = false;
		h = first;
		do
		:: h <= last -> ended[h] = true; job[h] = false; by_us[h] = false; h++
		:: else -> break
		od;
		got = NOTHING; unanswered = false; unsure = false; extended = false; attempt = 0
	};
done:	skip
}

/* What is left of hold h: copies on their way, and the cleaner's job. */
proctype Aftermath(byte h) {
	byte got;
end:
	do
	:: atomic { late_acquire[h] > 0 -> late_acquire[h]--; under_way--; s_acquire(h, got);
#ifdef LATE_REPLY_BELIEVED
		late_reply[h] = (got == YES);
#endif
		got = NOTHING }
	:: atomic { late_extend[h] > 0 -> late_extend[h]--; under_way--; s_extend(h, got); got = NOTHING }
	:: atomic { late_release[h] > 0 -> late_release[h]--; under_way--; s_release(h, got); got = NOTHING }
	:: atomic { late_acquire[h] > 0 -> late_acquire[h]--; under_way-- }
	:: atomic { late_extend[h] > 0 -> late_extend[h]--; under_way-- }
	:: atomic { late_release[h] > 0 -> late_release[h]--; under_way-- }
	:: atomic { job[h] ->
		if
		:: key == TOKEN(h) -> forget()
		:: else
		fi;
#ifndef WITHDRAW_ONCE
		if
		:: late_acquire[h] == 0 -> job[h] = false
		:: else
		fi
#else
		job[h] = false
#endif
		}
	od
}

#define LESS(x) x = ((x > 0) -> x - 1 : 0)

active proctype Clock() {
end:
	do
	:: atomic { ttl > 0 || left[0] > 0 || left[1] > 0 || valid[0] > 0 || valid[1] > 0 ->
		LESS(left[0]); LESS(left[1]); LESS(valid[0]); LESS(valid[1]);
		if
		:: ttl == 1 -> forget()
		:: ttl > 1 && ttl < FOREVER -> ttl--
		:: else
		fi }
	od
}

active proctype Monitor() {
end:
	do
	:: atomic { LOOKED_AT(OVERLAP) && inside[0] && valid[0] > 0 && inside[1] && valid[1] > 0 -> assert(false) }
	:: atomic { LOOKED_AT(GAP) && inside[0] && valid[0] > 0 && overtaken[0] -> assert(false) }
	:: atomic { LOOKED_AT(GAP) && inside[1] && valid[1] > 0 && overtaken[1] -> assert(false) }
	:: atomic { LOOKED_AT(ORPHAN) && key != 0 && ended[by] && !job[by] && !dead[OWNER(by)] -> assert(false) }
	:: atomic { LOOKED_AT(ENDLESS) && key != 0 && ended[by] && ttl > LONG -> assert(false) }
	od
}

init {
	atomic {
		run Client(0, 0, 1); run Client(1, 2, 2);
		run Aftermath(0); run Aftermath(1); run Aftermath(2)
	}
}
