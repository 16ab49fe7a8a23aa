//! Names, keys and stores: which locks are the same, and which names cannot be used.

use std::time::Duration;

use distlock::{Client, LockOptions};

use crate::helpers::{SOON, client, delete, error, get, keys, memory, on_another_thread};
use crate::support::Server;

#[test]
fn the_key_is_the_prefix_and_the_name() {
    let server = Server::start();
    let prefixed = Client::builder(&server.url()).key_prefix("lock:").build().unwrap();
    let lock = prefixed.lock("orders");
    assert_eq!((lock.name(), lock.key()), ("orders", "lock:orders"));
    lock.lock().unwrap();
    assert_eq!(keys(&server), ["lock:orders"]);
    // The same key built from another prefix and name is the same lock to the server. The bare name
    // is another lock.
    assert!(!client(&server).lock("lock:orders").try_lock(Duration::ZERO).unwrap());
    assert!(client(&server).lock("orders").try_lock(Duration::ZERO).unwrap());
    assert_eq!(error(on_another_thread(|| lock.unlock())).lock_name(), Some("orders"));
    lock.unlock().unwrap();
}

#[test]
fn names_that_cannot_be_used_are_reported_by_the_first_call_that_uses_them() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("p:").build().unwrap();
    let longest = "x".repeat(1022);
    for name in [String::new(), "x".repeat(1023), "ü".repeat(600), "x".repeat(1_000_000)] {
        let lock = client.lock(&name);
        assert_eq!(lock.name(), name);
        let failed = [
            lock.lock(),
            lock.try_lock(Duration::ZERO).map(drop),
            lock.try_lock(SOON).map(drop),
            lock.guard().map(drop),
            lock.with(|_| ()),
            lock.inspect().map(drop),
            lock.is_locked().map(drop),
            lock.force_unlock().map(drop),
            lock.lock_interruptibly(&distlock::Interrupt::new()),
        ];
        for failed in failed {
            let error = error(failed);
            assert!(error.is_invalid_input());
            assert!(error.to_string().len() < 200, "it does not repeat a megabyte");
        }
        assert!(!lock.is_held());
    }
    assert_eq!(server.client_count(), 0, "nothing was sent");
    client.lock(&longest).with(|_| ()).unwrap();
}

#[test]
fn odd_names_are_accepted() {
    let server = Server::start();
    let client = client(&server);
    let names = [
        "x",
        "{x}",
        "a}b",
        "{a}b}",
        "{}x",
        "x:",
        "{x}:",
        "x::",
        "a b",
        " ",
        "\r\n",
        "\0",
        "naïve ☃",
        "*",
        "'\"\\",
    ];
    let options = LockOptions::new().fenced();
    let locks: Vec<_> =
        names.iter().map(|name| client.lock_with(name, options.clone()).unwrap()).collect();
    for lock in &locks {
        assert!(lock.try_lock(Duration::ZERO).unwrap(), "{:?} is another's", lock.name());
    }
    for (lock, name) in locks.iter().zip(names) {
        assert_eq!(lock.key(), name);
        assert!(get(&server, name).is_some());
        assert!(!client_of_another(&server, name));
    }
    locks.iter().for_each(|lock| lock.unlock().unwrap());
    assert_eq!(keys(&server).len(), names.len(), "one fence for each, and no two share it");
}

/// Whether another client gets the lock.
fn client_of_another(server: &Server, name: &str) -> bool {
    client(server).lock(name).try_lock(Duration::ZERO).unwrap()
}

#[test]
fn companion_keys_share_the_slot_of_the_key() {
    let server = Server::start();
    let client = client(&server);
    let slot = |key: &str| {
        redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query::<u32>(&mut server.connection())
    };
    for name in ["orders", "a{b}c", "{x}", "a{b", "{user}:7"] {
        let lock = client.lock_with(name, LockOptions::new().fenced()).unwrap();
        lock.with(|_| ()).unwrap();
        let left = keys(&server);
        let [fence] = &left[..] else { panic!("{left:?}") };
        assert!(fence.ends_with("fence") && fence.contains(name));
        assert_eq!(crc_slot(fence), crc_slot(name), "{fence}");
        // The slot that the server itself names, if it does; a server outside a cluster refuses.
        if let (Ok(theirs), Ok(ours)) = (slot(fence), slot(name)) {
            assert_eq!(theirs, ours);
        }
        delete(&server, fence);
    }
}

/// The slot of a key, as the Redis Cluster specification has it: CRC16 (XMODEM) of the hash tag, or
/// of the whole key.
fn crc_slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    let crc = tag.unwrap_or(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16_384
}

#[test]
fn a_store_in_memory_is_shared_only_if_it_has_a_name() {
    let (own, another) = (memory(), memory());
    let (named, same) = (
        Client::open("memory://lock-names").unwrap(),
        Client::open("memory://lock-names").unwrap(),
    );
    for client in [&own, &another, &named] {
        assert!(client.lock("job").try_lock(Duration::ZERO).unwrap());
    }
    assert!(!same.lock("job").try_lock(Duration::ZERO).unwrap());
    assert!(
        Client::open("memory://lock-names-2")
            .unwrap()
            .lock("job")
            .try_lock(Duration::ZERO)
            .unwrap()
    );
    named.lock("job").unlock().unwrap();
    assert!(same.lock("job").try_lock(Duration::ZERO).unwrap());
}
