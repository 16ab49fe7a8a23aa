//! Several waiters in one script.

use redis::Commands;

use super::{KEYS, LONG, Room, Told, token};

#[test]
fn a_writer_that_ends_lets_in_all_readers_up_to_the_next_writer() {
    let mut room = Room::new(true);
    room.listen("inbox", true);
    let (first, last) = (token("w:", 1), token("w:", 2));
    let readers: Vec<String> = (10..41).map(|number| token("r:", number)).collect();
    assert_eq!(room.acquire(&first, LONG, None), Told::Granted { fence: 0 });
    for waiter in readers.iter().chain([&last, &token("r:", 50)]) {
        assert!(matches!(room.acquire(waiter, LONG, Some(("inbox", 1))), Told::Refused { .. }));
    }
    let questions = room.questions();
    assert!(room.yes("release", &[&first]));
    let granted: Vec<String> = room.served();
    assert_eq!(granted, readers, "in the order in which they came");
    assert_eq!(room.members(), readers);
    assert_eq!(room.queue(), [last.clone(), token("r:", 50)]);
    // One inbox: one question is enough.
    assert_eq!(room.questions() - questions, 1);
    // The last reader lets the writer in, and nobody else.
    for reader in &readers {
        assert!(room.messages().is_empty());
        assert!(room.yes("release", &[reader]));
    }
    assert_eq!(room.messages().len(), 1);
    assert_eq!(room.members(), [last]);
}

#[test]
fn sixteen_inboxes_are_asked_about_at_once() {
    let mut room = Room::new(true);
    let writer = token("w:", 1);
    assert_eq!(room.acquire(&writer, LONG, None), Told::Granted { fence: 0 });
    for number in 0..33 {
        let inbox = format!("inbox-{number}");
        room.listen(&inbox, true);
        let _ = room.acquire(&token("r:", 100 + number), LONG, Some((&inbox, 1)));
    }
    let questions = room.questions();
    assert!(room.yes("release", &[&writer]));
    assert_eq!(room.messages().len(), 33);
    assert_eq!(room.questions() - questions, 3, "about the first, and twice about sixteen");
}

#[test]
fn a_script_lets_in_128_and_the_next_that_asks_and_fits_128_more() {
    let mut room = Room::new(true);
    room.listen("inbox", true);
    let writer = token("w:", 1);
    assert_eq!(room.acquire(&writer, LONG, None), Told::Granted { fence: 0 });
    let readers: Vec<String> = (1_000..1_300).map(|number| token("r:", number)).collect();
    for reader in &readers {
        let _ = room.acquire(reader, LONG, Some(("inbox", 1)));
    }
    assert!(room.yes("release", &[&writer]));
    assert_eq!((room.messages().len(), room.members().len()), (128, 128));
    // A writer that asks does not fit, and lets nobody in.
    assert!(matches!(room.acquire(&token("w:", 2), LONG, None), Told::Refused { .. }));
    assert_eq!((room.messages().len(), room.members().len()), (0, 128));
    // The last one asks: those before it come first.
    let last = readers.last().unwrap();
    assert!(matches!(room.acquire(last, LONG, Some(("inbox", 2))), Told::Refused { .. }));
    assert_eq!((room.messages().len(), room.members().len()), (128, 256));
    assert_eq!(room.acquire(last, LONG, Some(("inbox", 3))), Told::Granted { fence: 0 });
    assert_eq!((room.messages().len(), room.members().len()), (43, 300));
    assert!(room.queue().is_empty());
}

#[test]
fn a_batch_has_a_fence_for_each() {
    let mut room = Room::new(true);
    room.listen("inbox", true);
    let writer = token("w:", 1);
    let Told::Granted { fence: mut last } = room.acquire_fenced(&writer, LONG, 1, None) else {
        panic!("refused");
    };
    for number in 10..15 {
        let _ = room.acquire_fenced(&token("r:", number), LONG, 1, Some(("inbox", 1)));
    }
    assert!(room.yes("release", &[&writer]));
    let messages = room.messages();
    assert_eq!(messages.len(), 5);
    for (_, _, fence, _) in messages {
        assert!(fence > last, "{fence}, after {last}");
        last = fence;
    }
}

#[test]
fn a_release_looks_at_nobody_whom_there_is_no_room_for() {
    for prefix in ["p1/1:", "p1/2:"] {
        let mut room = Room::new(true);
        room.listen("inbox", true);
        room.listen("other", true);
        let mut granted = Vec::new();
        let mut numbers = 1..;
        let mut next = || token(prefix, numbers.next().unwrap());
        let waiter = loop {
            let asks = next();
            match room.acquire(&asks, LONG, Some(("inbox", 1))) {
                Told::Granted { .. } => granted.push(asks),
                _ => break asks,
            }
        };
        let _ = room.acquire(&next(), LONG, Some(("other", 1)));
        let questions = room.questions();
        assert!(room.yes("release", &[&granted[0]]));
        assert_eq!(room.served(), [waiter]);
        assert_eq!(room.questions() - questions, 1, "{prefix}");
    }
}

#[test]
fn an_asker_that_does_not_fit_and_does_not_listen_keeps_nobody_waiting() {
    let mut room = Room::new(true);
    for inbox in ["inbox", "gone"] {
        room.listen(inbox, true);
    }
    let (holder, writer) = (token("w:", 1), token("w:", 3));
    let readers = [token("r:", 2), token("r:", 4)];
    assert_eq!(room.acquire(&holder, LONG, None), Told::Granted { fence: 0 });
    for (waiter, inbox) in [(&readers[0], "inbox"), (&writer, "gone"), (&readers[1], "inbox")] {
        let _ = room.acquire(waiter, LONG, Some((inbox, 1)));
    }
    room.listen("gone", false);
    let _: u64 = room.connection.del(KEYS[0]).unwrap();
    let told = room.acquire(&writer, LONG, Some(("gone", 2)));
    assert!(matches!(told, Told::Refused { heard: false, .. }), "{told:?}");
    assert_eq!(room.served(), readers, "both fit, and one of them is behind the asker");
    assert_eq!(room.queue(), [writer]);
}

#[test]
fn the_keys_of_one_waiter_and_of_several_end_together() {
    for (shared, prefix) in [(false, ""), (true, "w:")] {
        let mut room = Room::new(shared);
        room.listen("inbox", true);
        let holder = token(prefix, 1);
        assert_eq!(room.acquire(&holder, LONG, None), Told::Granted { fence: 0 });
        for number in 2..4 {
            let _ = room.acquire(&token(prefix, number), LONG, Some(("inbox", 1)));
            let (queue, waiters) = (room.lasts(KEYS[2]), room.lasts(KEYS[3]));
            assert!(waiters > 600_000 && queue.abs_diff(waiters) < 100_000, "{queue}, {waiters}");
        }
    }
}

/// A plain lock with a holder and these waiters, which are all listening.
fn queue_of(room: &mut Room, inboxes: &[&str]) -> (String, Vec<String>) {
    let holder = token("", 1);
    assert_eq!(room.acquire(&holder, LONG, None), Told::Granted { fence: 0 });
    let waiters: Vec<String> = (2..).take(inboxes.len()).map(|number| token("", number)).collect();
    for (waiter, inbox) in waiters.iter().zip(inboxes) {
        let _ = room.acquire(waiter, LONG, Some((inbox, 1)));
    }
    (holder, waiters)
}

#[test]
fn nobody_behind_the_new_holder_has_had_its_turn() {
    let mut room = Room::new(false);
    room.listen("gone", true);
    room.listen("inbox", true);
    let inboxes = ["gone", "inbox", "inbox", "inbox"];
    let (holder, waiters) = queue_of(&mut room, &inboxes);
    room.listen("gone", false);
    // It counts as dead, but has only not asked for long. If it comes back before its turn, it has
    // its place.
    room.die(&waiters[2]);
    assert!(room.yes("release", &[&holder]));
    assert_eq!(room.served(), [waiters[1].as_str()]);
    let _ = room.acquire(&waiters[2], LONG, Some(("inbox", 2)));
    assert_eq!(room.queue(), [&waiters[0], &waiters[2], &waiters[3]].map(String::as_str));
}

#[test]
fn inboxes_of_both_kinds_can_wait_for_one_lock() {
    let mut room = Room::new(false);
    for inbox in ["gone", "gone, too"] {
        room.listen(inbox, true);
    }
    // Servers before 7.0 have no channels of a shard: there such a waiter gets no place.
    let listens = room.listens_in_shard("{shard}");
    let (holder, waiters) = queue_of(&mut room, &["gone", "gone, too", "{shard}"]);
    for inbox in ["gone", "gone, too"] {
        room.listen(inbox, false);
    }
    assert!(room.yes("release", &[&holder]));
    let expected = if listens { vec![waiters[2].clone()] } else { Vec::new() };
    assert_eq!(room.served(), expected);
}

#[test]
fn permits_that_could_not_be_handed_over_are_there_for_whoever_asks() {
    let mut room = Room::new(true);
    room.listen("inbox", true);
    let (held, full) = (token("p1/3:", 1), token("p2/3:", 2));
    let (waiter, asker) = (token("p2/3:", 3), token("p1/3:", 4));
    for holder in [&held, &full] {
        assert_eq!(room.acquire(holder, LONG, None), Told::Granted { fence: 0 });
    }
    let _ = room.acquire(&waiter, LONG, Some(("inbox", 1)));
    room.be_a_user_who_may_not("-publish");
    assert!(room.yes("release_alone", &[&full]));
    assert_eq!(room.acquire(&asker, LONG, None), Told::Granted { fence: 0 });
    assert_eq!(room.members().len(), 2);
}
