//! Locks that are shared with Redisson, over Sentinel, before and after a failover.

use distlock::Client;

use super::{redisson, start};
use crate::helpers::{SOON, ms};
use crate::support::eventually;
use crate::support::sentinels::Sentinels;

#[test]
fn redisson_and_we_keep_each_other_out_over_a_failover() {
    let all = Sentinels::start();
    let Some([mut peer]) = start([("redisson", all.url())]) else { return };
    let client = Client::open(&all.url()).unwrap();
    let options = redisson().replicas(1).lease(SOON * 2);
    let ours = client.lock_with("a", options).unwrap();
    peer.says("lock a 20000", "ok");
    assert!(!ours.try_lock(ms(0)).unwrap());
    peer.says("unlock a", "ok");
    ours.lock().unwrap();
    peer.says("try a 0 20000", "no");
    all.fail_over();
    // Redisson answers with errors until it has found the new primary.
    eventually(SOON * 2, || match peer.ask("try a 0 20000").as_str() {
        "no" => true,
        "ok" => panic!("Redisson has the lock that we hold"),
        _ => false,
    });
    assert!(ours.is_valid());
    ours.unlock().unwrap();
    eventually(SOON * 2, || peer.ask("try a 1000 20000") == "ok");
    assert!(!ours.try_lock(ms(0)).unwrap());
    peer.says("unlock a", "ok");
    ours.with(|_| ()).unwrap();
}
