//! The inbox: a subscription whose stream is broken and still carries messages.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use distlock::{Client, Layout, Lock, LockOptions, Retry};

use crate::faults::through_proxy;
use crate::helpers::{SOON, Underway, ms};
use crate::support::{Fault, Rule, Server, eventually, on_time};

fn inboxes(server: &Server) -> Vec<String> {
    redis::cmd("PUBSUB")
        .arg("CHANNELS")
        .arg("distlock:inbox:*")
        .query(&mut server.connection())
        .unwrap()
}

fn listeners(server: &Server, inbox: &str) -> usize {
    let (_, count): (String, usize) =
        redis::cmd("PUBSUB").arg("NUMSUB").arg(inbox).query(&mut server.connection()).unwrap();
    count
}

/// Whether a reader has come after the first one, and listens to as many channels. The first may
/// still be there, or be gone: it ends by itself if no message comes for a while.
fn is_replaced(server: &Server, channels: u64) -> bool {
    let clients: String = redis::cmd("CLIENT")
        .arg(&["LIST", "TYPE", "pubsub"])
        .query(&mut server.connection())
        .unwrap();
    // The server lists them in the order of their coming.
    let last = clients.lines().last().unwrap_or_default();
    server.command_count("subscribe") > channels && last.contains(&format!(" sub={channels} "))
}

/// Runs `work` while messages come so often that no read of the inbox ever times out.
fn while_messages_come(server: &Server, work: impl FnOnce()) {
    eventually(SOON, || inboxes(server).len() == 1);
    let inbox = inboxes(server).remove(0);
    thread::scope(|scope| {
        let (quiet, is_quiet) = mpsc::channel::<()>();
        let (mut connection, channel) = (server.connection(), inbox.clone());
        scope.spawn(move || {
            while is_quiet.recv_timeout(ms(50)) == Err(RecvTimeoutError::Timeout) {
                let mut publish = redis::cmd("PUBLISH");
                publish.arg(&channel).arg("for nobody").exec(&mut connection).unwrap();
            }
        });
        work();
        drop(quiet);
    });
    // A stuck reader ends once no more messages come.
    eventually(SOON, || listeners(server, &inbox) == 1);
}

/// Breaks the stream once.
fn a_broken_stream_is_given_up(rule: Rule, layout: Layout) {
    let (server, proxy) = through_proxy();
    let holder = Client::open(&server.url()).unwrap();
    let holder = holder.lock_with("job", LockOptions::new().layout(layout)).unwrap();
    holder.lock().unwrap();
    let rule = proxy.add(rule);
    // It notices only when it asks, and so seldom that it can only have learnt of an early hand-off
    // by a message.
    let options = LockOptions::new().layout(layout).retry(Retry::fixed(ms(2_000)));
    let waiting = Client::open(&proxy.url()).unwrap();
    let lock = waiting.lock_with("job", options).unwrap();
    let waiter = Underway::start(move || {
        lock.lock().unwrap();
        let entered = Instant::now();
        lock.unlock().unwrap();
        entered
    });
    rule.wait_fired(SOON);
    // Redisson's layout has a channel for each lock, too.
    let channels = if layout == Layout::Plain { 1 } else { 2 };
    while_messages_come(&server, || {
        eventually(SOON, || is_replaced(&server, channels));
        // The waiter has just asked.
        let released = Instant::now();
        holder.unlock().unwrap();
        let entered = waiter.result();
        assert!(entered - released < ms(1_500), "it took {:?}", entered - released);
    });
    waiting.close(SOON).unwrap();
    eventually(SOON, || inboxes(&server).is_empty());
}

/// The header of a reply of half a gigabyte, of which nothing more comes.
fn huge() -> Rule {
    Rule::on("SUBSCRIBE", Fault::ReplaceReply(b"$536870913\r\n".to_vec())).next(1)
}

#[test]
fn a_reader_that_waits_for_a_reply_of_half_a_gigabyte_is_replaced() {
    on_time(ms(100), || a_broken_stream_is_given_up(huge(), Layout::Plain));
}

#[test]
fn a_stuck_reader_is_replaced_even_when_all_wait_in_conditions() {
    on_time(ms(100), || {
        let (server, proxy) = through_proxy();
        let rule = proxy.add(huge());
        let client = Client::open(&proxy.url()).unwrap();
        let lock = client.lock("job");
        let waiter = Underway::start(move || {
            lock.lock().unwrap();
            lock.new_condition("ready").unwrap().wait().unwrap();
            let woken = Instant::now();
            lock.unlock().unwrap();
            woken
        });
        rule.wait_fired(SOON);
        while_messages_come(&server, || {
            eventually(SOON, || is_replaced(&server, 1));
            let notifier = Client::open(&server.url()).unwrap().lock("job");
            notifier.lock().unwrap();
            notifier.new_condition("ready").unwrap().notify_one().unwrap();
            let released = Instant::now();
            notifier.unlock().unwrap();
            let woken = waiter.result();
            // By itself it asks every 4 to 6 s.
            assert!(woken - released < ms(1_500), "it took {:?}", woken - released);
        });
    });
}

#[test]
fn a_reader_that_waits_for_a_lost_confirmation_is_replaced() {
    let of_the_lock = |command: &[Vec<u8>]| {
        command.get(1).is_some_and(|channel| channel.starts_with(b"redisson"))
    };
    on_time(ms(100), || {
        let lost = Rule::on("SUBSCRIBE", Fault::SwallowReply).when(of_the_lock).next(1);
        a_broken_stream_is_given_up(lost, Layout::Redisson);
    });
}
