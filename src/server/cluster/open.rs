//! By which nodes a cluster is reached first: from a URL, or from a builder.

use super::Cluster;
use super::topology::Topology;
use crate::base::clock::Clock;
use crate::base::error::{Error, Result};
use crate::server::dial::Address;
use crate::server::settings::{Among, Settings};
use crate::server::url::{is_tls, login, login_and_hosts, parse};

const SCHEMES: [(&str, &str); 2] =
    [("redis+cluster://", "redis://"), ("rediss+cluster://", "rediss://")];

/// The URLs of the nodes in `redis+cluster://user:password@host:port,host:port`. `None`: the URL is
/// of another kind.
pub(crate) fn in_url(url: &str) -> Option<Vec<String>> {
    let (rest, scheme) =
        SCHEMES.iter().find_map(|(prefix, scheme)| Some((url.strip_prefix(prefix)?, *scheme)))?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (login, hosts) = login_and_hosts(authority);
    Some(hosts.split(',').map(|host| format!("{scheme}{login}{host}{path}")).collect())
}

/// A cluster that is reached by these nodes first. Connects to none of them.
pub(crate) fn open(urls: &[String], settings: Settings, clock: Clock) -> Result<Cluster> {
    let infos = urls.iter().map(|url| parse(url)).collect::<Result<Vec<_>>>()?;
    let Some(first) = infos.first() else {
        return Err(Error::invalid("at least one node of the cluster has to be named"));
    };
    settings.check_without_sentinels()?;
    if settings.pool.is_some() {
        return Err(Error::unsupported(
            "a pool of the program cannot be used with a cluster: it leads to one of the nodes",
        ));
    }
    if infos.iter().any(|info| login(info) != login(first)) {
        return Err(Error::invalid("all nodes of a cluster are asked as the same user"));
    }
    if infos.iter().any(|info| info.redis_settings().db() != 0) {
        return Err(Error::unsupported("a cluster has only the database 0"));
    }
    let seeds: Option<Vec<_>> = infos.iter().map(Address::of).collect();
    let Some(seeds) = seeds else {
        return Err(Error::invalid("the nodes of a cluster have a host and a port"));
    };
    if infos.iter().any(|info| is_tls(info) != is_tls(first)) {
        return Err(Error::invalid(
            "either all nodes of a cluster are reached over TLS, or none of them",
        ));
    }
    let info = first.clone();
    let settings = Settings { among: Among::Cluster, ..settings };
    Ok(Cluster::new(Topology::new(seeds, info, settings, clock)))
}
