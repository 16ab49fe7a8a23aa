//! `Client::execute`: a caller's own commands over the pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use distlock::{Client, ErrorKind};
use redis::{ConnectionLike, FromRedisValue, RedisResult};

use crate::faults::{PATIENCE, impatient, pool_of, through_proxy, warm_up};
use crate::helpers::{SOON, error, ms};
use crate::support::fake::{self, FakeServer, Reply};
use crate::support::{Fault, Rule, Server, eventually, within};

fn call<T: FromRedisValue>(connection: &mut dyn ConnectionLike, words: &[&str]) -> RedisResult<T> {
    redis::cmd(words[0]).arg(&words[1..]).query(connection)
}

#[test]
fn execute_runs_commands_pipelines_and_transactions() {
    let server = Server::start();
    for client in [
        Client::open(&server.url()).unwrap(),
        Client::builder(&server.url()).pool(pool_of(&server.url(), 1, true)).build().unwrap(),
        Client::open(&format!("{}7", server.url())).unwrap(),
    ] {
        let count: i64 =
            client.execute(|connection| call(connection, &["INCRBY", "count", "2"])).unwrap();
        assert_eq!(count % 2, 0);
        let both: (i64, i64) = client
            .execute(|connection| {
                redis::pipe().atomic().incr("count", 1).incr("count", -1).query(connection)
            })
            .unwrap();
        assert_eq!(both, (count + 1, count));
        client.execute(|_| Ok(())).unwrap();
    }
    let mut connection =
        redis::Client::open(format!("{}7", server.url())).unwrap().get_connection().unwrap();
    assert_eq!(
        call::<i64>(&mut connection, &["GET", "count"]).unwrap(),
        2,
        "the database in the URL"
    );
}

#[test]
fn execute_runs_once_more_after_a_dropped_connection() {
    let (_server, proxy) = through_proxy();
    for pooled in [true, false] {
        let builder = Client::builder(&proxy.url());
        let client = if pooled { builder } else { builder.pool(pool_of(&proxy.url(), 2, false)) }
            .build()
            .unwrap();
        for (fault, runs, sum) in [(Fault::CutBefore, 2, 1), (Fault::CutAfter, 2, 2)] {
            client.execute(|connection| call::<()>(connection, &["DEL", "n"])).unwrap();
            let cut = proxy.add(Rule::on("INCR", fault).next(1));
            let mut run = 0;
            let n: i64 = client
                .execute(|connection| {
                    run += 1;
                    call::<i64>(connection, &["INCR", "n"])
                })
                .unwrap_or_else(|error| panic!("{error:?}"));
            cut.wait_fired(SOON);
            assert_eq!((run, n), (runs, sum));
        }
    }
}

#[test]
fn execute_gives_up_after_the_second_dropped_connection() {
    let (_server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    client.ping().unwrap();
    let _cut = proxy.add(Rule::on("INCR", Fault::CutBefore));
    let mut runs = 0;
    let error = error(client.execute(|connection| {
        runs += 1;
        call::<i64>(connection, &["INCR", "n"])
    }));
    assert!(error.is_unavailable(), "{error:?}");
    assert_eq!(runs, 2);
}

#[test]
fn execute_does_not_run_again_after_a_timeout() {
    let (server, proxy) = through_proxy();
    for pooled in [true, false] {
        let client = impatient(&proxy.url());
        let client = if pooled { client } else { client.pool(pool_of(&proxy.url(), 1, true)) }
            .build()
            .unwrap();
        call::<()>(&mut server.connection(), &["DEL", "n"]).unwrap();
        let lost = proxy.add(Rule::on("INCR", Fault::SwallowReply).next(1));
        let mut runs = 0;
        let error = within(PATIENCE..SOON, || {
            error(client.execute(|connection| {
                runs += 1;
                call::<i64>(connection, &["INCR", "n"])
            }))
        });
        assert!(error.is_unavailable(), "{error:?}");
        lost.wait_fired(SOON);
        assert_eq!(runs, 1);
        assert_eq!(call::<i64>(&mut server.connection(), &["GET", "n"]).unwrap(), 1);
        eventually(SOON, || {
            client
                .execute(|connection| call::<i64>(connection, &["GET", "n"]))
                .is_ok_and(|n| n == 1)
        });
    }
}

#[test]
fn execute_maps_what_the_server_says() {
    let said = [
        "NOAUTH wanted",
        "NOPERM not you",
        "WRONGTYPE it is a list",
        "OOM none left",
        "ERR no such thing",
        "LOADING a moment",
        "CUSTOM thing",
    ];
    let kinds = [
        ErrorKind::Denied,
        ErrorKind::Denied,
        ErrorKind::WrongType,
        ErrorKind::Server,
        ErrorKind::Server,
        ErrorKind::Unavailable,
        ErrorKind::Server,
    ];
    let server = FakeServer::start(move |_, command| {
        if !fake::is(command, "GET") {
            return Reply::usual(command);
        }
        Reply::error(said[usize::from(command[1][0] - b'0')])
    });
    let client = Client::open(&server.url()).unwrap();
    for (n, kind) in kinds.into_iter().enumerate() {
        let mut runs = 0;
        let error = error(client.execute(|connection| {
            runs += 1;
            call::<String>(connection, &["GET", &n.to_string()])
        }));
        assert_eq!((error.kind(), runs), (kind, 1), "{}", said[n]);
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(said[n].split(' ').next().unwrap()), "{source}");
    }
    assert_eq!(
        server.accepted(),
        1,
        "an error of the server is no reason to distrust a connection"
    );
}

#[test]
fn a_failed_conversion_in_the_callers_code_is_an_error_but_no_failed_connection() {
    let (_server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    assert!(
        error(client.execute(|connection| redis::cmd("PING").query::<u64>(connection))).is_server()
    );
    let own: RedisResult<()> = Err((redis::ErrorKind::Client, "my own reason").into());
    assert!(error(client.execute(|_| own.clone())).is_server());
    client.ping().unwrap();
    assert_eq!(proxy.accepted(), 1);
}

#[test]
fn failure_that_a_caller_swallows_does_not_poison_the_pool() {
    let (_server, proxy) = through_proxy();
    for (pooled, fault) in [
        (true, Fault::DelayReply(PATIENCE * 2)),
        (true, Fault::TruncateReply),
        (true, Fault::CutAfter),
        (false, Fault::DelayReply(PATIENCE * 2)),
        (false, Fault::TruncateReply),
        (false, Fault::CutAfter),
    ] {
        let builder = impatient(&proxy.url()).pool_size(1);
        let client = if pooled { builder } else { builder.pool(pool_of(&proxy.url(), 1, false)) }
            .build()
            .unwrap();
        client.ping().unwrap();
        let hit = proxy.add(Rule::on("ECHO", fault.clone()).next(1));
        let heard: RedisResult<String> = client
            .execute(|connection| {
                Ok(redis::cmd("ECHO").arg("swallowed").query::<String>(connection))
            })
            .expect("the caller says that all is well, and it is the caller's to say");
        assert!(heard.is_err());
        hit.wait_fired(SOON);
        let before = proxy.accepted();
        let heard: String =
            client.execute(|connection| redis::cmd("ECHO").arg("next").query(connection)).unwrap();
        assert_eq!(heard, "next");
        assert!(!pooled || proxy.accepted() == before + 1, "{fault:?}: a new connection");
        assert!(client.lock("x").try_lock(SOON).unwrap());
        client.lock("x").unlock().unwrap();
    }
}

#[test]
fn panic_of_a_caller_leaves_the_pool_whole() {
    let (_server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).pool_size(1).build().unwrap();
    for fault in [None, Some(Fault::DelayReply(PATIENCE * 2))] {
        let late = fault.is_some();
        if let Some(fault) = fault {
            let _ = proxy.add(Rule::on("ECHO", fault).next(1));
        }
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            client.execute(|connection| {
                let heard: RedisResult<String> = redis::cmd("ECHO").arg("before").query(connection);
                assert!(heard.is_err() != late, "thrown on purpose");
                panic!("thrown on purpose") as RedisResult<()>
            })
        }));
        assert!(panicked.is_err());
        let heard: String =
            client.execute(|connection| redis::cmd("ECHO").arg("after").query(connection)).unwrap();
        assert_eq!(heard, "after");
    }
}

#[test]
fn slow_use_of_one_connection_keeps_no_caller_from_the_others() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    // The very first connection of all is in use, and nothing has been asked over it.
    client
        .execute(|_| {
            std::thread::scope(|scope| {
                scope.spawn(|| within(..ms(1500), || client.ping()).unwrap()).join().unwrap()
            });
            Ok(())
        })
        .unwrap();
    warm_up(&client, 8);
    // A command that blocks for longer than the command timeout fails, and shuts nobody else out.
    let impatient = impatient(&server.url()).build().unwrap();
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| {
            impatient.execute(|connection| {
                call::<Option<(String, String)>>(connection, &["BLPOP", "none", "5"])
            })
        });
        while !blocked.is_finished() {
            assert!(impatient.lock("x").try_lock(std::time::Duration::ZERO).unwrap());
            impatient.lock("x").unlock().unwrap();
        }
        assert!(
            impatient.lock("x").try_lock(std::time::Duration::ZERO).unwrap(),
            "right after the timeout"
        );
        impatient.lock("x").unlock().unwrap();
        assert!(error(blocked.join().unwrap()).is_unavailable());
    });
}

#[test]
fn execute_on_memory_is_unsupported() {
    let client = Client::open("memory://").unwrap();
    let error = error(client.execute(|connection| redis::cmd("PING").exec(connection)));
    assert!(error.is_unsupported());
    client.ping().unwrap();
}

#[test]
fn execute_after_close_is_closed() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    client.ping().unwrap();
    client.close(SOON).unwrap();
    assert!(error(client.execute(|connection| redis::cmd("PING").exec(connection))).is_closed());
    assert!(error(client.ping()).is_closed());
}

#[test]
fn a_connection_of_the_programs_own_pool_comes_back_with_the_whole_command_timeout() {
    let (_server, proxy) = through_proxy();
    let pool = pool_of(&proxy.url(), 1, false);
    let client = Client::builder(&proxy.url())
        .pool(pool.clone())
        .command_timeout(ms(1_000))
        .build()
        .unwrap();
    client.ping().unwrap();
    let late = proxy.add(Rule::on("SET", Fault::DelayReply(ms(850))).next(1));
    let _ = client.lock("job").try_lock(Duration::ZERO);
    late.wait_fired(SOON);
    // Longer than the rest of the command's time that the late reply had left.
    let popped = redis::cmd("BLPOP")
        .arg("nothing")
        .arg("0.4")
        .query::<Option<(String, String)>>(&mut *pool.get().unwrap());
    assert_eq!(popped.unwrap(), None);
}

#[test]
fn the_programs_idle_connections_keep_their_timeouts_when_one_of_them_was_closed() {
    let (_server, proxy) = through_proxy();
    let pool = pool_of(&proxy.url(), 3, false);
    let lock = Client::builder(&proxy.url()).pool(pool.clone()).build().unwrap().lock("job");
    lock.lock().unwrap();
    // It is closed, so all idle connections are tried.
    let cut = proxy.add(Rule::on("EVALSHA", Fault::CutBefore).next(1));
    lock.extend(ms(60_000)).unwrap();
    cut.wait_fired(SOON);
    let mut all: Vec<_> = (0..3).map(|_| pool.get().unwrap()).collect();
    // Far less than the client's command timeout.
    let mut wait = |i: usize| {
        redis::cmd("BLPOP")
            .arg("nothing")
            .arg("0.5")
            .query::<Option<(String, String)>>(&mut *all[i])
    };
    let answers: Vec<_> = (0..3).map(|i| wait(i).map_err(|error| error.to_string())).collect();
    assert_eq!(answers, [Ok(None), Ok(None), Ok(None)]);
}

#[test]
fn each_command_of_a_caller_has_the_whole_time() {
    let server = Server::start();
    let client = Client::builder(&server.url()).command_timeout(ms(1_000)).build().unwrap();
    let waits = |connection: &mut dyn redis::ConnectionLike| {
        redis::cmd("BLPOP").arg("nothing").arg(0.4).query::<Option<(String, String)>>(connection)
    };
    // Longer than one command may take.
    let run = |connection: &mut dyn redis::ConnectionLike| {
        (0..4).try_for_each(|_| waits(connection).map(drop))
    };
    client.execute(run).unwrap();
    let pipeline = |connection: &mut dyn redis::ConnectionLike| {
        let mut pipe = redis::pipe();
        (0..4).for_each(|_| {
            pipe.cmd("BLPOP").arg("nothing").arg(0.4);
        });
        pipe.query::<Vec<redis::Value>>(connection).map(drop)
    };
    client.execute(pipeline).unwrap();
}

#[test]
fn a_connection_that_failed_is_of_no_use_to_the_caller_either() {
    let (_server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let late = proxy.add(Rule::on("ECHO", Fault::DelayReply(PATIENCE * 2)).next(1));
    let answers = client.execute(|connection| {
        let first = call::<String>(connection, &["ECHO", "first"]);
        // Otherwise this would be the late reply to the first.
        std::thread::sleep(PATIENCE * 3);
        Ok((first, call::<String>(connection, &["ECHO", "second"]), connection.is_open()))
    });
    late.wait_fired(SOON);
    let (first, second, is_open) = answers.unwrap();
    assert!(first.unwrap_err().is_timeout());
    assert!(second.unwrap_err().is_io_error());
    assert!(!is_open);
}

#[test]
fn a_pushed_message_is_not_the_reply_to_a_command() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let both = client.execute(|connection| {
        call::<redis::Value>(connection, &["HELLO", "3"])?;
        call::<()>(connection, &["CLIENT", "TRACKING", "ON", "BCAST"])?;
        let mut pipe = redis::pipe();
        pipe.set("key", "one").get("key").set("key", "two").get("key");
        let values: (bool, String, bool, String) = pipe.query(connection)?;
        Ok((values.1, values.3, call::<String>(connection, &["GET", "key"])?))
    });
    assert_eq!(both.unwrap(), ("one".into(), "two".into(), "two".into()));
    client.lock("job").with(|_| ()).unwrap();
}

#[test]
fn a_transaction_that_the_server_discards_says_so() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let discarded: RedisResult<()> = client
        .execute(|connection| {
            Ok(redis::pipe().atomic().set("key", 1).cmd("NO_SUCH_COMMAND").query(connection))
        })
        .unwrap();
    let discarded = discarded.unwrap_err();
    assert_eq!(discarded.code(), Some("EXECABORT"), "{discarded:?}");
    assert!(!call::<bool>(&mut server.connection(), &["EXISTS", "key"]).unwrap());
}
