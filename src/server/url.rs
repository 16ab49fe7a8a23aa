//! URLs of servers. redis-rs reads them, and ignores what it does not know: `?database=3` would
//! lead to database 0, where other locks are. So this crate refuses what it does not know.
//!
//! No error quotes any part of a URL: a password that is not encoded may stand anywhere in it.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::base::error::{Error, Result};

const SCHEMES: &str = "the URL cannot be understood: it begins with redis://, rediss://, \
                       redis+unix://, redis+sentinel://, rediss+sentinel://, \
                       redis+cluster://, rediss+cluster:// or memory://";
const ENCODED: &str = "the URL cannot be understood: the scheme is followed by a host, or by \
                       user:password@host, and perhaps by :port and /database. In a user or a \
                       password, : / ? # @ and % are written as %3A %2F %3F %23 %40 and %25";
const HOST: &str = "the URL names no host: redis://localhost/";
const USER: &str = "the URL names a user without a password: redis://user:password@host/ has both, \
                    and redis://:password@host/ has the password of the default user";
const DATABASE: &str = "the database of a URL is a number: /3 behind the host, or ?db=3";
const TWO_DATABASES: &str = "the URL names two databases";
const LOG_IN: &str = "a user and a password stand before the host: redis://user:password@host/";
const TLS: &str = "TLS is asked for by the scheme: rediss://host/. Certificates are always \
                   checked, and ClientBuilder::root_certificates names their authorities";
const FRAGMENT: &str = "a # in a URL has no meaning here; in a password it is written as %23";
const PARAMETER: &str = "the URL has a parameter that is not known: ?db=3 is the only one of a \
                         host, and ?db=, ?user= and ?pass= are those of a unix socket";

/// Cuts `user:password@host:port,host` in front of the first host.
pub(crate) fn login_and_hosts(authority: &str) -> (&str, &str) {
    authority.split_at(authority.rfind('@').map_or(0, |at| at + 1))
}

/// The user and the password in a URL.
pub(crate) fn login(info: &ConnectionInfo) -> (Option<&str>, Option<&str>) {
    let login = info.redis_settings();
    (login.username(), login.password())
}

/// Whether the server is reached over TLS.
pub(crate) fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// Reads a URL. Does not connect.
pub(crate) fn parse(url: &str) -> Result<ConnectionInfo> {
    let Some(parts) = redis::parse_redis_url(url) else {
        return Err(unreadable(url));
    };
    let is_host = !parts.scheme().contains("unix");
    let mut database = None;
    for (name, value) in parts.query_pairs() {
        match &*name {
            "db" if database.is_none() => {
                let number: u32 = value.parse().map_err(|_| Error::invalid(DATABASE))?;
                database = Some(i64::from(number));
            }
            "user" | "pass" if !is_host => {}
            _ => return Err(Error::invalid(misplaced(&name))),
        }
    }
    if let Some(fragment) = parts.fragment() {
        return Err(match fragment {
            "insecure" => Error::unsupported(TLS),
            _ => Error::invalid(FRAGMENT),
        });
    }
    let path = parts.path().trim_matches('/');
    if is_host && !path.is_empty() {
        let named: u32 = path.parse().map_err(|_| Error::invalid(DATABASE))?;
        if database.is_some_and(|database| database != i64::from(named)) {
            return Err(Error::invalid(TWO_DATABASES));
        }
    }
    // The cause is left out: it may quote the URL.
    let info = url.into_connection_info().map_err(|_| unreadable(url))?;
    if !info.addr().is_supported() {
        return Err(Error::unsupported("rediss:// needs the feature `tls` of this crate"));
    }
    // redis-rs would not say who we are.
    let login = info.redis_settings();
    if login.username().is_some() && login.password().is_none() {
        return Err(Error::invalid(USER));
    }
    Ok(match (database, info.addr()) {
        (Some(database), ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. }) => {
            let login = info.redis_settings().clone().set_db(database);
            info.set_redis_settings(login)
        }
        _ => info,
    })
}

/// What is wrong with a URL that redis-rs cannot read.
fn unreadable(url: &str) -> Error {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    if !matches!(scheme, "redis" | "rediss" | "valkey" | "valkeys") {
        return Error::invalid(SCHEMES);
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Error::invalid(if host.is_empty() || host.starts_with(':') { HOST } else { ENCODED })
}

/// What is wrong with a parameter that is not known, as other libraries have it.
fn misplaced(name: &str) -> &'static str {
    match name {
        "db" => TWO_DATABASES,
        "database" => DATABASE,
        "user" | "username" | "pass" | "password" => LOG_IN,
        "ssl" | "tls" | "ssl_cert_reqs" | "ssl_ca_certs" | "ssl_check_hostname" => TLS,
        _ => PARAMETER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(url: &str) -> i64 {
        parse(url).expect(url).redis_settings().db()
    }

    /// Why the URL is refused.
    fn refused(url: &str) -> String {
        parse(url).expect_err(url).to_string()
    }

    #[test]
    fn a_database_is_a_path_or_a_parameter() {
        for url in [
            "redis://h",
            "redis://h/",
            "redis://h//",
            "redis://h/0",
            "redis://h?db=0",
            "redis://h/0?db=0",
        ] {
            assert_eq!(database(url), 0, "{url}");
        }
        for url in ["redis://h/3", "redis://h?db=3", "redis://h/?db=3", "redis://h/3?db=3"] {
            assert_eq!(database(url), 3, "{url}");
        }
        assert_eq!(database("redis+unix:///run/redis.sock?db=3"), 3);
        assert_eq!(database("unix:///run/redis.sock?db=3&user=u&pass=p"), 3);
        for url in
            ["redis://h/x", "redis://h/3/4", "redis://h/-1", "redis://h?db=", "redis://h/3.0"]
        {
            assert!(refused(url).contains(DATABASE), "{url}");
        }
        for url in ["redis://h/0?db=3", "redis://h?db=3&db=3", "unix:///s?db=1&db=2"] {
            assert!(refused(url).contains(TWO_DATABASES), "{url}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (url, why) in [
            ("redis://h?database=3", DATABASE),
            ("redis://h/?username=u&password=secret", LOG_IN),
            ("redis://h?pass=secret", LOG_IN),
            ("redis://h?ssl_cert_reqs=none", TLS),
            ("rediss://h/#insecure", TLS),
            ("redis://h/#3", FRAGMENT),
            ("redis://h/?protocol=resp3", PARAMETER),
            ("unix:///s?database=3", DATABASE),
            ("unix:///s?secret", PARAMETER),
            ("redis://u:secret@h:x/", ENCODED),
            ("redis://u:se/cret@h/", ENCODED),
            ("redis://h:70000/", ENCODED),
            ("redis://", HOST),
            ("redis:///3", HOST),
            ("redis://:6379", HOST),
            ("redis://u:secret@", HOST),
            ("redis://secret@h/", USER),
            ("unix:///s?user=u", USER),
            ("http://h/", SCHEMES),
            ("localhost:6379", SCHEMES),
            ("", SCHEMES),
        ] {
            let said = refused(url);
            assert!(said.contains(why) && !said.contains("secret"), "{url}: {said}");
        }
    }
}
