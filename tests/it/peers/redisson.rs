//! What only Redisson's layout has: fences, and a forced unlock by an operator.

use super::{lock, redisson, start};
use crate::helpers::{SOON, error};
use crate::support::{Server, eventually};

#[test]
fn redissons_fences_and_ours_grow_together() {
    let server = Server::start();
    let Some([peer]) = start([("redisson", server.url())]) else { return };
    let mut peer = peer.with(&["kind fenced"]);
    let ours = lock(&server, redisson().fenced());
    let mut last = 0;
    for _ in 0..3 {
        let answer = peer.ask("lock a 20000");
        let theirs = peer.number(&answer);
        assert!(theirs > last, "{theirs} after {last}");
        peer.says("unlock a", "ok");
        last = ours.with(|guard| guard.fence().unwrap()).unwrap();
        assert!(last > theirs, "{last} after {theirs}");
    }
}

#[test]
fn either_side_can_take_the_lock_from_the_other_by_force() {
    let server = Server::start();
    let Some([mut peer]) = start([("redisson", server.url())]) else { return };
    let ours = lock(&server, redisson());
    ours.lock().unwrap();
    peer.says("locked a", "yes");
    peer.says("force a", "ok");
    peer.says("locked a", "no");
    assert!(error(ours.unlock()).is_lost());
    peer.says("lock a 20000", "ok");
    assert!(ours.force_unlock().unwrap());
    peer.says("unlock a", "refused");
    eventually(SOON, || !ours.is_locked().unwrap());
}
