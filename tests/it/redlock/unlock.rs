//! What an unlock says of nodes that deny the lease, and of nodes that say nothing.

use std::time::Duration;

use distlock::Lock;

use super::nodes::{Mood, Nodes};
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn an_unlock_that_some_nodes_deny_and_some_do_not_answer_is_unknown() {
    let nodes = Nodes::start();
    let client = nodes.builder().command_timeout(Duration::from_millis(300)).build().unwrap();
    let lock = client.lock("a");
    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.nodes[..2].iter().for_each(|node| node.forget("a"));
    nodes.set([3, 4], Mood::Silent);
    // One node has released the lease. Asked again it would deny it, too, and that would look like
    // a release that has run after all.
    assert!(lock.unlock().unwrap_err().is_unknown());
    eventually(SOON, || nodes.holding("a") == [3, 4]);
    nodes.set([3, 4], Mood::Fine);
    eventually(SOON, || nodes.holding("a").is_empty());
    assert!(nodes.nodes[..3].iter().all(|node| node.asked("release").len() == 1));
}
