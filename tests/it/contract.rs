//! The contract of every place that keeps leases: one suite, run over each of them.
//!
//! A new store is one more line in `over_every_store!` at the end. A store must refuse what it says
//! that it cannot do.

mod claims;
mod leases;
mod locks;
mod permits;
mod queue;
mod rw_locks;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use distlock::testing::{
    Answer, Ask, Extend, Gone, Key, LeaseStore, Release, Token, Withdraw, Within,
};
use distlock::{Client, ClientBuilder, Layout, LockOptions};

use crate::helpers::{SOON, held};
use crate::support::fake::FakeServer;
use crate::support::fake_sentinel::{Says, sentinel};
use crate::support::sentinels::SERVICE;
use crate::support::shards::Shards;
use crate::support::{Server, eventually};

/// A place that keeps leases, and how clients get there.
struct Place {
    client: Client,
    /// Another client of the same place.
    other: Client,
    store: Arc<dyn LeaseStore>,
    options: LockOptions,
    /// What stands before the UUID in each token.
    share: &'static str,
    is_a_cluster: bool,
    /// Whether it has semaphores and read-write locks.
    has_shares: bool,
    /// Whether a replica has to confirm everything.
    confirms: bool,
    /// Whether the server can wake waiters.
    wakes: bool,
    /// What must live as long as the place.
    _servers: Vec<Server>,
    _sentinels: Vec<FakeServer>,
}

impl Place {
    /// The place that clients of this URL use, with this layout.
    fn at(url: &str, layout: Layout, servers: Vec<Server>) -> Place {
        Place::of(|| Client::builder(url), layout, servers)
    }

    fn of(builder: impl Fn() -> ClientBuilder, layout: Layout, servers: Vec<Server>) -> Place {
        let place = Place::with(builder, LockOptions::new().layout(layout), servers);
        Place { has_shares: layout == Layout::Plain, ..place }
    }

    fn with(
        builder: impl Fn() -> ClientBuilder,
        options: LockOptions,
        servers: Vec<Server>,
    ) -> Place {
        let open = || builder().lock_options(options.clone()).build().unwrap();
        let (client, other) = (open(), open());
        // Starts what looks after leases in the background.
        client.lock("contract").with(|_| ()).unwrap();
        Place {
            store: client.store_with(&options).unwrap(),
            client,
            other,
            options,
            has_shares: true,
            share: "",
            is_a_cluster: false,
            confirms: false,
            wakes: true,
            _servers: servers,
            _sentinels: Vec::new(),
        }
    }

    fn memory() -> Place {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("memory://contract-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Place::at(&name, Layout::Plain, Vec::new())
    }

    fn server() -> Place {
        Place::on_a_server(Layout::Plain)
    }

    /// A majority of servers.
    fn quorum() -> Place {
        let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
        let urls: Vec<_> = servers.iter().map(Server::url).collect();
        let place = Place::of(|| Client::redlock_builder(&urls), Layout::Plain, servers);
        Place { has_shares: false, ..place }
    }

    /// A majority of stores in memory.
    fn quorum_in_memory() -> Place {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let urls: Vec<_> =
            (0..5).map(|node| format!("memory://contract-node-{id}-{node}")).collect();
        let place = Place::of(|| Client::redlock_builder(&urls), Layout::Plain, Vec::new());
        Place { has_shares: false, ..place }
    }

    fn redisson() -> Place {
        Place::on_a_server(Layout::Redisson)
    }

    fn timestamp() -> Place {
        Place::on_a_server(Layout::Timestamp)
    }

    /// A server that sentinels watch.
    fn watched() -> Place {
        let server = Server::start();
        let says = Says::new(&server, 1);
        let sentinels: Vec<_> = (0..3).map(|_| sentinel(&says)).collect();
        let urls: Vec<_> = sentinels.iter().map(FakeServer::url).collect();
        let open = || Client::sentinel_builder(&urls, SERVICE);
        let place = Place::of(open, Layout::Plain, vec![server]);
        Place { _sentinels: sentinels, ..place }
    }

    /// A server with a replica that has to confirm everything.
    fn confirmed() -> Place {
        // It is the primary that would wait five seconds for more replicas.
        let server = Server::builder().arg("repl-diskless-sync-delay", "0").start();
        let of = format!("127.0.0.1 {}", server.port());
        let replica = Server::builder().arg("replicaof", &of).start();
        server.wait_for_replicas(1);
        let url = server.url();
        let options = LockOptions::new().replicas(1);
        let place = Place::with(|| Client::builder(&url), options, vec![server, replica]);
        Place { confirms: true, ..place }
    }

    /// A server, and there a semaphore of one permit, whose leases are as those of a lock.
    fn one_permit() -> Place {
        Place::server().with_one_permit()
    }

    fn one_permit_in_memory() -> Place {
        Place::memory().with_one_permit()
    }

    fn one_permit_in_a_cluster() -> Place {
        Place::cluster().with_one_permit()
    }

    fn with_one_permit(self) -> Place {
        let store = self.client.store_of_permits(1, &self.options).unwrap();
        Place { store, share: "p1/1:", ..self }
    }

    /// A server, and there the write side of a read-write lock.
    fn write_lock() -> Place {
        Place::server().with_a_write_lock()
    }

    fn write_lock_in_memory() -> Place {
        Place::memory().with_a_write_lock()
    }

    fn write_lock_in_a_cluster() -> Place {
        Place::cluster().with_a_write_lock()
    }

    fn with_a_write_lock(self) -> Place {
        let store = self.client.store_of_rw_locks(&self.options).unwrap();
        Place { store, share: "w:", ..self }
    }

    /// A cluster. Every client has been told of another node.
    fn cluster() -> Place {
        let shards = Shards::start(2);
        let mut next = shards.urls().into_iter().cycle();
        let next = Mutex::new(move || next.next().unwrap());
        let open = || Client::cluster_builder([(next.lock().unwrap())()]);
        let wakes = shards.have_channels();
        let place = Place::of(open, Layout::Plain, shards.primaries);
        Place { is_a_cluster: true, wakes, ..place }
    }

    fn on_a_server(layout: Layout) -> Place {
        let server = Server::start();
        Place::at(&server.url(), layout, vec![server])
    }

    /// A token that no other call has had, in the form that every layout can write.
    fn token(&self) -> Token {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Token::new(format!("{}00000000-0000-7000-8000-{number:012x}@me", self.share))
    }

    fn ask(&self, key: &Key, token: &Token, lease: Duration) -> Answer {
        self.ask_with(key, token, lease, 0, true)
    }

    fn ask_with(
        &self,
        key: &Key,
        token: &Token,
        lease: Duration,
        fences: u32,
        may_be_mine: bool,
    ) -> Answer {
        let ask = Ask {
            key,
            token,
            attempt: 1,
            lease,
            fences,
            place: None,
            contended: false,
            may_be_mine,
            deadline: deadline(),
        };
        self.store.try_acquire(&ask).unwrap()
    }

    fn is_granted(&self, key: &Key, token: &Token) -> bool {
        matches!(self.ask(key, token, LEASE), Answer::Granted { .. })
    }

    fn fence(&self, key: &Key, token: &Token, block: u32) -> u64 {
        match self.ask_with(key, token, LEASE, block, true) {
            Answer::Granted { fences: Some(fences), .. } => fences.last,
            answer => panic!("{answer:?}"),
        }
    }

    /// The rest of the holder's lease.
    fn remaining(&self, key: &Key) -> Option<Duration> {
        held(&*self.store, key).pop().map(|held| held.remaining.unwrap())
    }

    /// Its end was moved to at least that long from now. A minority of a quorum may be behind for a
    /// moment, and its answers may come first.
    #[track_caller]
    fn lasts_longer_than(&self, key: &Key, length: Duration) {
        eventually(SOON, || self.remaining(key).unwrap() > length);
    }

    fn holder(&self, key: &Key) -> Option<String> {
        held(&*self.store, key).pop().map(|held| held.token.text())
    }

    fn extend(&self, leases: &[(&Key, &Token, Duration)]) -> Vec<bool> {
        let leases: Vec<_> =
            leases.iter().map(|(key, token, lease)| Extend { key, token, lease: *lease }).collect();
        self.store
            .extend(&leases, Within::until(deadline()))
            .into_iter()
            .map(Result::unwrap)
            .collect()
    }

    fn extend_one(&self, key: &Key, token: &Token, lease: Duration) -> bool {
        self.store.extend_one(&Extend { key, token, lease }, deadline()).unwrap()
    }

    fn release(&self, key: &Key, token: &Token) -> Gone {
        self.store.release(&Release::of(key, token), deadline()).unwrap()
    }

    fn withdraw(&self, key: &Key, token: &Token) -> Gone {
        self.store.withdraw_one(Withdraw::of(key, token), deadline()).unwrap()
    }
}

const LEASE: Duration = Duration::from_secs(20);

fn deadline() -> Instant {
    Instant::now() + SOON
}

fn key(name: &str) -> Key {
    Key::new(name.to_owned())
}

/// Each promise as a test of its own, for each store.
macro_rules! over_every_store {
    (@leases $place:ident) => {
        over_every_store! { @promises $place:
            leases {
                nobody_has_it
                a_free_lock_is_granted
                a_held_lock_is_refused_with_the_rest_of_its_lease
                locks_of_different_names_have_nothing_to_do_with_each_other
                asking_again_with_the_same_token_makes_the_lease_whole
                the_same_token_is_refused_where_it_cannot_be_mine
                a_lease_runs_out_by_itself
                extend_compares_the_token
                extend_never_creates
                extend_never_shortens
                extend_answers_for_each_lease_by_itself
                an_extend_of_one_lease_never_shortens
                only_the_owner_extends_one_lease
                release_by_an_old_owner_leaves_the_new_owner_alone
                withdraw_may_be_repeated_and_removes_only_what_is_ours
                force_release_frees_it_whoever_has_it
                fences_grow_with_every_token
                a_repeated_attempt_reserves_fences_that_grow
            }
            queue {
                a_release_hands_the_lock_to_the_first_in_the_queue
                a_waiter_that_withdrew_or_does_not_listen_is_passed_over
            }
        }
    };
    (@promises $place:ident: $($theme:ident { $($promise:ident)* })*) => {$($(
        #[test]
        fn $promise() {
            super::$theme::$promise(&super::Place::$place());
        }
    )*)*};
    ($($place:ident)*; $($shared:ident)*) => {
        $(mod $place {
            over_every_store! { @leases $place }
            over_every_store! { @promises $place:
                locks {
                    lock_holds_until_it_is_unlocked_as_often
                    two_clients_exclude_each_other
                    a_waiting_client_gets_the_lock_when_it_is_released
                    guards_unlock_when_they_are_dropped
                    the_holder_extends
                    force_unlock_lets_the_next_in_and_the_holder_learns_of_it
                    a_lease_is_renewed_until_it_is_unlocked
                    a_lease_that_is_not_renewed_runs_out
                    threads_of_two_clients_never_hold_it_at_once
                }
                claims {
                    a_claim_excludes_holds_and_claims_of_every_client
                    whatever_thread_has_a_claim_releases_it
                    a_claim_waits_behind_a_hold_and_a_hold_behind_a_claim
                    a_claim_is_renewed_and_extended
                    a_claim_that_was_lost_releases_nothing
                }
                permits {
                    all_permits_or_none_and_never_more_than_there_are
                    holders_are_listed_with_what_they_have
                    who_wants_many_permits_is_not_overtaken
                    a_release_lets_in_as_many_as_fit
                    releases_add_up_for_who_wants_many
                    who_gives_up_lets_in_those_behind
                    a_permit_is_renewed_and_a_permit_that_is_not_comes_back
                    a_lock_and_a_semaphore_of_one_name_are_refused
                    a_limiter_and_a_semaphore_of_one_name_are_refused
                    a_refusal_tells_when_enough_leases_will_have_ended
                    those_behind_an_asker_that_fits_are_served_with_it
                    threads_of_two_clients_never_have_more_than_there_are
                }
                rw_locks {
                    many_read_or_one_writes
                    nobody_overtakes_a_waiting_writer_and_readers_behind_it_come_together
                    who_writes_may_read_and_reads_on_after_that
                    a_thread_locks_and_unlocks_both_sides_in_any_order_as_in_java
                    a_downgrade_lets_waiting_readers_in_and_no_writer
                    who_reads_cannot_lock_the_write_side
                    a_forced_unlock_of_one_side_leaves_the_other_alone
                    fences_of_both_sides_grow_together
                    a_lock_a_semaphore_and_a_read_write_lock_of_one_name_are_refused
                    a_lease_of_either_side_is_renewed_and_one_that_is_not_runs_out
                    no_thread_of_two_clients_reads_beside_a_writer
                }
            }
        })*
        $(mod $shared {
            over_every_store! { @leases $shared }
        })*
    };
}

over_every_store! {
    memory
    server
    redisson
    timestamp
    quorum
    quorum_in_memory
    watched
    confirmed
    cluster;
    one_permit
    one_permit_in_memory
    one_permit_in_a_cluster
    write_lock
    write_lock_in_memory
    write_lock_in_a_cluster
}
