//! What a client of a cluster is told, and what it refuses.

use distlock::{Client, ErrorKind};

use crate::helpers::{error, ms};
use crate::support::Server;
use crate::support::shards::Shards;

#[test]
fn the_nodes_stand_in_a_url_or_in_a_list() {
    let shards = Shards::with(1, 0, || Shards::node().password("secret"));
    let port = shards.primaries[0].port();
    for client in [
        Client::open(&format!("redis+cluster://:secret@127.0.0.1:{port},127.0.0.1:{port}")),
        Client::open(&format!("redis+cluster://default:secret@127.0.0.1:{port}/0")),
        Client::cluster(shards.urls()),
    ] {
        let client = client.unwrap();
        client.lock("x").with(|_| ()).unwrap();
        assert!(format!("{client:?}").contains("a cluster"));
        client.close(crate::helpers::SOON).unwrap();
    }
    let stranger = Client::open(&format!("redis+cluster://127.0.0.1:{port}")).unwrap();
    assert_eq!(error(stranger.lock("x").try_lock(ms(0))).kind(), ErrorKind::Denied);
}

#[test]
fn a_url_names_hosts_and_nothing_else() {
    for (url, why) in [
        ("redis+cluster://", "no host"),
        ("redis+cluster://a,,b", "no host"),
        ("redis+cluster://a?x=1", "parameter"),
        ("redis+cluster://a/1", "only the database 0"),
    ] {
        let failed = Client::open(url).map(drop).unwrap_err();
        assert!(failed.to_string().contains(why), "{failed}");
    }
    let failed = Client::cluster_builder(["redis://a"]).database(1).build().map(drop).unwrap_err();
    assert!(failed.to_string().contains("stand in the URL"), "{failed}");
}

#[test]
fn one_server_is_no_cluster_and_a_node_is_not_one_server() {
    let (server, shards) = (Server::start(), Shards::start(1));
    let of_one = Client::cluster([server.url()]).unwrap();
    let failed = error(of_one.lock("x").try_lock(ms(0)));
    assert_eq!(failed.kind(), ErrorKind::Unsupported);
    assert!(failed.to_string().contains("Client::open"), "{failed}");
    let of_node = Client::open(&shards.primaries[0].url()).unwrap();
    let failed = error(of_node.lock("x").try_lock(ms(0)));
    assert_eq!(failed.kind(), ErrorKind::Unsupported);
    assert!(failed.to_string().contains("Client::cluster"), "{failed}");
}
