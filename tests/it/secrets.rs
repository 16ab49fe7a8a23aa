//! Tokens, passwords and URLs reach no log line, no `Debug` and no `Display`, whatever goes wrong
//! (R19).

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

use distlock::{Client, Error, LockOptions, Renewal};

use crate::faults::{PATIENCE, impatient, pool_of};
use crate::helpers::{SOON, is_token, ms, put};
use crate::logs;
use crate::support::fake::{self, FakeServer, Reply};
use crate::support::tls::Certificates;
use crate::support::{Fault, Mode, Proxy, Rule, Server, eventually};

const USER_PASSWORD: &str = "Pa55phraseOfTheUser";
const WRONG_PASSWORD: &str = "Pa55phraseThatIsWrong";
const OWNER: &str = "owner-0f-the-caller";

/// Everything that has been shown, and the secrets that must not be in it.
#[derive(Default)]
struct Watch {
    shown: Mutex<String>,
    secrets: Mutex<BTreeSet<String>>,
}

impl Watch {
    fn show(&self, what: &dyn std::fmt::Debug) {
        let mut shown = self.shown.lock().unwrap();
        writeln!(shown, "{what:?} {what:#?}").unwrap();
    }

    /// An error in every form, and its causes.
    fn error(&self, error: &Error) {
        self.show(error);
        let mut cause: Option<&dyn StdError> = Some(error);
        while let Some(error) = cause {
            writeln!(self.shown.lock().unwrap(), "{error} {error:?}").unwrap();
            cause = error.source();
        }
    }

    fn result<T>(&self, result: Result<T, Error>) {
        if let Err(error) = result {
            self.error(&error);
        }
    }

    fn secret(&self, secret: impl Into<String>) {
        self.secrets.lock().unwrap().insert(secret.into());
    }

    /// Makes every call that there is, and shows the results.
    fn all_calls(&self, client: &Client) {
        self.show(client);
        for options in
            [LockOptions::new(), LockOptions::new().fenced(), LockOptions::new().owner(OWNER)]
        {
            self.show(&options);
            let lock = client
                .lock_with("secrets", options.lease(ms(300)).renewal(Renewal::AtMost(1)))
                .unwrap();
            self.show(&lock);
            let watch: &'static Watch = watch();
            lock.on_lost(|lost| watch.show(lost));
            self.result(client.ping());
            self.result(lock.try_lock(Duration::ZERO));
            if let Ok(state) = lock.inspect().map_err(|error| self.error(&error)) {
                state.holders.iter().for_each(|holder| self.secret(holder.token.clone()));
                self.show(&state);
            }
            self.result(lock.extend(ms(300)));
            self.result(lock.is_locked());
            self.result(lock.force_unlock());
            self.result(lock.unlock());
            self.result(lock.unlock());
            match lock.try_guard(ms(20)) {
                Ok(guard) => {
                    self.show(&guard);
                    std::thread::sleep(ms(400));
                }
                Err(error) => self.error(&error),
            }
            self.result(
                client.execute(|connection| {
                    redis::cmd("GET").arg("secrets").query::<u64>(connection)
                }),
            );
        }
        self.result(client.close(PATIENCE));
        self.result(client.ping());
    }
}

fn watch() -> &'static Watch {
    static WATCH: std::sync::OnceLock<Watch> = std::sync::OnceLock::new();
    WATCH.get_or_init(Watch::default)
}

#[test]
fn no_secret_is_shown_whatever_goes_wrong() {
    logs::keep();
    let watch = watch();
    for password in [USER_PASSWORD, WRONG_PASSWORD, OWNER] {
        watch.secret(password);
    }
    let server = Server::builder().password(USER_PASSWORD).start();
    // Tokens of every attempt are read on the wire.
    let proxy = Proxy::start(server.port());
    let seen = proxy.add(Rule::any(Fault::DelayReply(Duration::ZERO)).when(|command| {
        for part in command {
            let text = String::from_utf8_lossy(part);
            if is_token(&text) {
                self::watch().secret(text.into_owned());
            }
        }
        false
    }));
    let url = proxy.url_with("default", USER_PASSWORD);
    watch.show(&impatient(&url));
    let patient = || impatient(&url).command_timeout(ms(150)).connect_timeout(ms(150));
    watch.all_calls(&patient().build().unwrap());
    watch.all_calls(&patient().pool(pool_of(&url, 1, false)).build().unwrap());
    watch.all_calls(&Client::open(&proxy.url_with("default", WRONG_PASSWORD)).unwrap());
    watch.all_calls(&Client::open(&proxy.url()).unwrap());

    // Foreign data, and a stranger's lock.
    let mut admin = server.connection();
    redis::cmd("HSET").arg("secrets").arg("a").arg("b").exec(&mut admin).unwrap();
    watch.all_calls(&patient().build().unwrap());
    redis::cmd("DEL").arg("secrets").exec(&mut admin).unwrap();
    put(&server, "secrets", "stranger-token", SOON * 6);
    watch.secret("stranger-token");
    watch.all_calls(&patient().build().unwrap());
    redis::cmd("DEL").arg("secrets").exec(&mut admin).unwrap();

    // Faults on the wire, one after another.
    for fault in [
        Fault::CutAfter,
        Fault::SwallowReply,
        Fault::GarbleReply,
        Fault::TruncateReply,
        Fault::ReplaceReply(b"*1\r\n:9\r\n".to_vec()),
        Fault::ReplaceReply(
            b"-ERR unknown command `SET`, with args beginning with: `secrets` `T0ken`\r\n".to_vec(),
        ),
    ] {
        watch.secret("T0ken");
        let client = patient().build().unwrap();
        // The client before this one may have found the server down.
        eventually(PATIENCE, || client.ping().is_ok());
        let rule = proxy.add(Rule::any(fault).skip(1));
        watch.all_calls(&client);
        rule.remove();
    }
    for mode in [Mode::Refuse, Mode::Close, Mode::Silent] {
        proxy.set_mode(mode);
        watch.all_calls(&patient().build().unwrap());
    }
    proxy.set_mode(Mode::Forward);

    // A server that quotes what it was sent.
    let quoting = FakeServer::start(|_, command| {
        if fake::is(command, "PING") {
            return Reply::usual(command);
        }
        let words: Vec<_> = command[1..]
            .iter()
            .map(|word| format!("`{}`", String::from_utf8_lossy(word)))
            .collect();
        Reply::error(&format!(
            "ERR unknown command `{}`, with args beginning with: {}",
            String::from_utf8_lossy(&command[0]),
            words.join(" ")
        ))
    });
    watch.all_calls(
        &Client::open(&format!("redis://:{USER_PASSWORD}@127.0.0.1:{}/", quoting.port())).unwrap(),
    );
    watch.all_calls(&Client::open(&quoting.url()).unwrap());

    // URLs and certificates that cannot be used.
    for url in [
        format!("redis://:{USER_PASSWORD}@[::1"),
        format!("http://:{USER_PASSWORD}@localhost/"),
        format!("redis://:{USER_PASSWORD}@localhost/not-a-number"),
        format!("redis://:{USER_PASSWORD}@localhost:notaport/"),
        USER_PASSWORD.to_owned(),
    ] {
        let builder = Client::builder(&url);
        watch.show(&builder);
        watch.error(&builder.build().unwrap_err());
    }
    let certificates = Certificates::new();
    let bad = certificates.expired();
    let tls = Server::builder()
        .password(USER_PASSWORD)
        .tls(&bad.cert, &bad.key, certificates.ca())
        .start();
    watch.all_calls(
        &Client::builder(&tls.tls_url("localhost"))
            .root_certificates(certificates.ca_pem())
            .build()
            .unwrap(),
    );

    // The background threads log a little later.
    eventually(SOON, || logs::everything().contains("secrets"));
    assert_eq!(seen.fired(), 0);
    let shown = watch.shown.lock().unwrap().clone();
    let logged = logs::everything();
    assert!(
        shown.len() > 10_000 && shown.contains("WRONGPASS"),
        "there is something to look through"
    );
    let secrets = watch.secrets.lock().unwrap();
    assert!(secrets.len() > 20, "tokens were seen: {}", secrets.len());
    for secret in &*secrets {
        for (place, text) in [("shown", &shown), ("logged", &logged)] {
            let line = text.lines().find(|line| line.contains(secret.as_str()));
            assert!(line.is_none(), "{secret} was {place}: {}", line.unwrap());
        }
    }
}
