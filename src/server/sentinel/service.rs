//! Which sentinels, which service, and who we are there: from a URL, or from a builder.

use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionInfo;

use super::Sentinels;
use crate::base::error::{Error, Result};
use crate::server::dial::{Address, Dialer};
use crate::server::settings::{Settings, as_user};
use crate::server::url::{is_tls, login, login_and_hosts, parse};

/// Where sentinels listen unless somebody says otherwise.
const PORT: u16 = 26_379;
/// Stands for the primary in URLs. A name that no name server has (RFC 2606).
const PRIMARY: &str = "primary.invalid";
const SCHEMES: [(&str, &str); 2] =
    [("redis+sentinel://", "redis://"), ("rediss+sentinel://", "rediss://")];

/// A service that sentinels watch, as a program names it.
#[derive(Clone, Default)]
pub(crate) struct Service {
    pub(crate) name: String,
    /// `redis://` or `rediss://`, with the sentinels' own credentials.
    pub(crate) sentinels: Vec<String>,
}

impl Service {
    pub(crate) fn new(name: &str, urls: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let sentinels = urls.into_iter().map(|url| with_usual_port(url.as_ref())).collect();
        Self { name: name.to_owned(), sentinels }
    }

    /// A URL that stands for the primary. Nobody connects to it: the sentinels say where the
    /// primary is.
    pub(crate) fn primary(&self) -> String {
        let tls = self.sentinels.first().is_some_and(|url| url.starts_with("rediss:"));
        format!("{}://{PRIMARY}/", if tls { "rediss" } else { "redis" })
    }
}

/// The service in a URL: `redis+sentinel://user:password@host:port,host/name/database`. With it a
/// URL that stands for the primary: `None` if the URL is of another kind.
pub(crate) fn in_url(url: &str) -> Option<Result<(Service, String)>> {
    let (rest, scheme) =
        SCHEMES.iter().find_map(|(prefix, scheme)| Some((url.strip_prefix(prefix)?, *scheme)))?;
    Some(read(rest, scheme).ok_or_else(|| {
        Error::invalid(
            "the URL cannot be understood: after redis+sentinel:// come the sentinels, separated \
             by commas, then / and the name of the service, and perhaps / and a database",
        )
    }))
}

fn read(rest: &str, scheme: &str) -> Option<(Service, String)> {
    let (authority, path) = rest.split_once('/')?;
    let (login, hosts) = login_and_hosts(authority);
    let (path, parameters) = path.split_at(path.find(['?', '#']).unwrap_or(path.len()));
    let (name, database) = path.split_once('/').unwrap_or((path, ""));
    let sentinels: Vec<String> =
        hosts.split(',').map(|host| format!("{scheme}{}/", with_port(host))).collect();
    if name.is_empty() || hosts.split(',').any(str::is_empty) {
        return None;
    }
    let service = Service { name: name.to_owned(), sentinels };
    Some((service, format!("{scheme}{login}{PRIMARY}/{database}{parameters}")))
}

/// The URL of a sentinel, with the usual port unless it has one.
fn with_usual_port(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.is_empty() {
        return url.to_owned();
    }
    let (login, host) = login_and_hosts(authority);
    format!("{scheme}://{login}{}/{path}", with_port(host))
}

/// The host with the usual port, unless it has one. An IPv6 address stands in brackets.
fn with_port(host: &str) -> String {
    let has_port = host.rsplit_once(']').map_or(host, |(_, rest)| rest).contains(':');
    if has_port { host.to_owned() } else { format!("{host}:{PORT}") }
}

/// The sentinels of a service, and how its primary is reached. Connects to none of them.
pub(crate) fn open(
    service: &Service,
    primary: ConnectionInfo,
    settings: &Settings,
) -> Result<(Arc<Sentinels>, Dialer)> {
    let infos = service.sentinels.iter().map(|url| parse(url)).collect::<Result<Vec<_>>>()?;
    let Some(first) = infos.first() else {
        return Err(Error::invalid("at least one sentinel has to be named"));
    };
    if settings.pool.is_some() {
        return Err(Error::unsupported(
            "a pool of the program cannot be used with Sentinel: its connections would stay at the \
             old primary after a failover",
        ));
    }
    if service.name.is_empty() || service.name.contains([' ', '\r', '\n']) {
        return Err(Error::invalid("the name of a service must be one word"));
    }
    if infos.iter().any(|info| is_tls(info) != is_tls(&primary)) {
        return Err(Error::invalid(
            "either all sentinels and the primary are reached over TLS, or none of them",
        ));
    }
    if infos.iter().any(|info| info.redis_settings().db() != 0) {
        return Err(Error::invalid(
            "sentinels have no databases: ClientBuilder::database names that of the primary",
        ));
    }
    if infos.iter().any(|info| login(info) != (None, None) && login(info) != login(first)) {
        return Err(Error::invalid("all sentinels are asked as the same user"));
    }
    let mut addresses = Vec::new();
    for info in &infos {
        let Some(address) = Address::of(info) else {
            return Err(Error::invalid("a sentinel is named by its host and port"));
        };
        // Named twice, it has one vote.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let login = settings.sentinel_credentials.as_ref();
    let sentinel = login.map_or_else(|| first.clone(), |login| as_user(first.clone(), login));
    let primary = settings.dialer(&primary)?;
    let within: Duration = settings.connect_timeout.min(settings.command_timeout);
    let sentinels = settings.dialer(&sentinel)?;
    let sentinels = Sentinels::new(&service.name, addresses, sentinels, primary.clone(), within);
    Ok((sentinels, primary))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> Option<(Vec<String>, String, String)> {
        let (service, primary) = in_url(url)?.ok()?;
        Some((service.sentinels, service.name, primary))
    }

    #[test]
    fn a_url_names_sentinels_a_service_and_the_primarys_login() {
        assert_eq!(
            of("redis+sentinel://u:p%40@s1:1,s2,[::1],[::2]:2/orders/3"),
            Some((
                ["redis://s1:1/", "redis://s2:26379/", "redis://[::1]:26379/", "redis://[::2]:2/"]
                    .map(str::to_owned)
                    .to_vec(),
                "orders".to_owned(),
                "redis://u:p%40@primary.invalid/3".to_owned(),
            ))
        );
        let (sentinels, _, primary) = of("rediss+sentinel://s1/orders").unwrap();
        assert_eq!(
            (sentinels[0].as_str(), primary.as_str()),
            ("rediss://s1:26379/", "rediss://primary.invalid/")
        );
        for bad in [
            "redis+sentinel://s1",
            "redis+sentinel://s1/",
            "redis+sentinel://s1,,s2/a",
            "redis+sentinel:///a",
        ] {
            assert!(in_url(bad).unwrap().is_err(), "{bad}");
        }
        assert!(in_url("redis://s1/0").is_none());
    }
}
