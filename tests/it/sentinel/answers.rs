//! Which answer counts, and what a sentinel that says nothing, or something old, can do.

use std::time::Instant;

use distlock::Client;

use crate::helpers::{SOON, Underway, error, get, ms};
use crate::support::fake::{FakeServer, Reply};
use crate::support::fake_sentinel::{Says, sentinel};
use crate::support::sentinels::SERVICE;
use crate::support::{Fault, Proxy, Rule, Server, eventually, on_time, within};

pub fn client(sentinels: &[&FakeServer]) -> Client {
    let urls = sentinels.iter().map(|sentinel| sentinel.url());
    Client::sentinel_builder(urls, SERVICE).command_timeout(SOON).build().unwrap()
}

/// A client that has the answer of one sentinel at once, and the others' after two round trips.
/// Once a majority has answered, the last one has as long again.
pub fn client_of_one_near(near: &FakeServer, far: [&FakeServer; 2]) -> (Client, [Proxy; 2]) {
    let ways = far.map(|sentinel| Proxy::start(sentinel.port()));
    ways.iter().for_each(|way| way.set_delay(ms(40), ms(40)));
    let urls = [near.url(), ways[0].url(), ways[1].url()];
    (Client::sentinel_builder(urls, SERVICE).command_timeout(SOON).build().unwrap(), ways)
}

/// Whether the lock that the client takes now is on this server.
pub fn locks_at(client: &Client, server: &Server) -> bool {
    client.lock("x").lock().unwrap();
    let there = get(server, "x").is_some();
    // Lost, if the primary moves just now.
    let _ = client.lock("x").unlock();
    there
}

/// How many `SENTINEL` commands a client sends to each sentinel when it looks around, in one go.
const QUESTIONS: usize = 2;

/// Returns once the client has heard what the sentinels say now. `asked`: how many questions the
/// one has got that got the fewest.
pub fn wait_until_asked_anew(asked: impl Fn() -> usize) {
    // A round that is under way may have had its answers before. Those of the next one have been
    // read once there is another.
    let enough = asked().next_multiple_of(QUESTIONS) + QUESTIONS + 1;
    eventually(SOON, || asked() >= enough);
}

/// The primary is away for a while. The client asks where it is, again and again, and must not go
/// to the old one.
fn waits_for(client: &Client, new: &Server, old: &Server) {
    new.kill();
    let lock = client.lock("y");
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    // Longer than a majority would have to name it.
    std::thread::sleep(ms(4_000));
    new.restart();
    waiting.result().unwrap();
    assert_eq!(old.command_count("set"), 0, "the client went back to the old primary");
}

#[test]
fn the_highest_epoch_decides() {
    let (old, new) = (Server::start(), Server::start());
    let all = [Says::new(&old, 4), Says::new(&new, 5), Says::new(&old, 4)];
    let [first, second, third] = all.each_ref().map(sentinel);
    on_time(ms(20), || {
        let (client, _ways) = client_of_one_near(&first, [&second, &third]);
        assert!(locks_at(&client, &new));
    });
}

#[test]
fn one_sentinel_with_an_old_epoch_leads_nobody_back() {
    let (old, new) = (Server::start(), Server::start());
    let all = [0; 3].map(|_| Says::new(&new, 5));
    let sentinels = all.each_ref().map(sentinel);
    let client = client(&sentinels.each_ref());
    assert!(locks_at(&client, &new));
    // Two of three are away, the third was cut off since before the failover.
    all[2].name(&old, 4);
    let [first, second, _third] = sentinels;
    drop((first, second));
    waits_for(&client, &new, &old);
}

#[test]
fn a_majority_with_a_lower_epoch_has_begun_again() {
    let (old, new) = (Server::start(), Server::start());
    let all = [0; 3].map(|_| Says::new(&old, 5));
    let sentinels = all.each_ref().map(sentinel);
    let client = client(&sentinels.each_ref());
    assert!(locks_at(&client, &old));
    // SENTINEL REMOVE and MONITOR: the epoch is 0 again.
    all.iter().for_each(|says| says.name(&new, 0));
    eventually(SOON, || locks_at(&client, &new));
}

/// Where each failover is made by `REMOVE` and `MONITOR`, all epochs are 0.
#[test]
fn among_equal_epochs_a_majority_moves_the_client_and_one_sentinel_does_not() {
    let (old, new) = (Server::start(), Server::start());
    let all = [0; 3].map(|_| Says::new(&new, 0));
    let sentinels = all.each_ref().map(sentinel);
    let client = client(&sentinels.each_ref());
    assert!(locks_at(&client, &new));
    all.iter().for_each(|says| says.name(&old, 0));
    eventually(SOON, || locks_at(&client, &old));
    // This one has been cut off, and is the only one that answers now.
    all[0].name(&new, 0);
    let [_cut_off, second, third] = sentinels;
    drop((second, third));
    old.restart();
    let asked_before = new.command_count("set");
    let since = Instant::now();
    while since.elapsed() < ms(4_500) {
        let _ = client.lock("x").try_lock(ms(100)).map(|_| client.lock("x").unlock());
    }
    assert_eq!(new.command_count("set"), asked_before, "one sentinel moved the client");
}

#[test]
fn news_move_an_idle_client() {
    let (old, new) = (Server::start(), Server::start());
    let all = [0; 3].map(|_| Says::new(&old, 5));
    let sentinels = all.each_ref().map(sentinel);
    let client = client(&sentinels.each_ref());
    assert!(locks_at(&client, &old));
    // Asked by the client, and by the thread's first look around.
    let asked = |sentinel: &FakeServer| sentinel.count("SENTINEL");
    eventually(SOON, || sentinels.iter().all(|its| asked(its) >= 2 * QUESTIONS));
    all.iter().for_each(|says| says.name(&new, 6));
    // Found by the next look around, without any message.
    eventually(SOON, || locks_at(&client, &new));
}

#[test]
fn sentinels_that_hang_or_are_gone_delay_little() {
    let server = Server::start();
    let says = Says::new(&server, 1);
    let good = [0; 3].map(|_| sentinel(&says));
    let hung = FakeServer::start(|_, _| Reply::Silence);
    let gone = FakeServer::start(|_, _| Reply::ok());
    let urls = [hung.url(), gone.url()].into_iter().chain(good.iter().map(FakeServer::url));
    let urls: Vec<String> = urls.collect();
    drop(gone);
    // One that hangs could be waited for for half a second.
    on_time(ms(40), || {
        let client = Client::sentinel(&urls, SERVICE).unwrap();
        let lock = client.lock("x");
        let since = Instant::now();
        lock.lock().unwrap();
        let took = since.elapsed();
        lock.unlock().unwrap();
        assert!(took < ms(400), "{took:?}");
    });
}

#[test]
fn a_replica_that_a_sentinel_names_is_not_used() {
    let primary = Server::start();
    let replica =
        Server::builder().arg("replicaof", &format!("127.0.0.1 {}", primary.port())).start();
    let says = Says::new(&replica, 1);
    let sentinels = [0; 3].map(|_| sentinel(&says));
    let client = client(&sentinels.each_ref());
    assert!(error(client.lock("x").try_lock(ms(300))).is_unavailable());
    says.name(&primary, 2);
    within(..SOON, || client.lock("x").lock()).unwrap();
    client.lock("x").unlock().unwrap();
}

#[test]
fn what_an_old_primary_answers_after_the_news_does_not_count() {
    let (old, new) = (Server::start(), Server::start());
    let proxy = Proxy::start(old.port());
    let says = Says::new(&old, 5);
    says.at(proxy.port(), 5);
    let sentinels = [0; 3].map(|_| sentinel(&says));
    let client = client(&sentinels.each_ref());
    client.ping().unwrap();
    // 1. the old primary grants, and its answer is late; 2. the client hears of the new one; 3. the
    // answer comes.
    let late = proxy.add(Rule::on("SET", Fault::HoldReply).next(1));
    let waiting = {
        let lock = client.lock("x");
        Underway::start(move || {
            lock.lock().unwrap();
            // Asked of the new primary.
            let there = lock.is_locked().unwrap();
            let _ = lock.unlock();
            there
        })
    };
    let held = late.wait_held(SOON);
    says.name(&new, 6);
    wait_until_asked_anew(|| sentinels.iter().map(|its| its.count("SENTINEL")).min().unwrap());
    held.release();
    assert!(waiting.result(), "the grant of the old primary counted");
}
