//! What sentinels say about a service, and which of their answers counts (R23).

use redis::Value;

use crate::base::error::ErrorKind;
use crate::base::store_error::StoreError;
use crate::server::dial::Address;
use crate::server::reply;

/// A primary, as sentinels named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Primary {
    pub(crate) address: Address,
    /// Grows with each failover that sentinels have agreed on.
    pub(crate) epoch: u64,
}

/// What one sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentinelAnswer {
    pub(super) primary: Primary,
    /// Whether no failover is under way as far as it knows.
    pub(super) settled: bool,
}

/// The questions to a sentinel, in one packet.
pub(super) fn questions(service: &str) -> Vec<u8> {
    let about = |what: &str| redis::cmd("SENTINEL").arg(what).arg(service).get_packed_command();
    [about("MASTER"), about("GET-MASTER-ADDR-BY-NAME")].concat()
}

/// How many replies [`questions`] has.
pub(super) const REPLIES: usize = 2;

/// What the replies to [`questions`] say. `Ok(None)`: the sentinel does not know the service.
pub(super) fn read(replies: Vec<Value>) -> Result<Option<SentinelAnswer>, StoreError> {
    let [master, address] = <[Value; REPLIES]>::try_from(replies).map_err(|_| reply::nonsense())?;
    let master = match reply::value(master) {
        Ok(master) => fields(master)?,
        Err(error) if says_no_such_service(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let epoch = field(&master, "config-epoch").and_then(|epoch| epoch.parse().ok());
    let flags = field(&master, "flags").unwrap_or_default();
    // During a failover MASTER names the old primary for a while after the new one has been
    // promoted; this question is answered with the new one then.
    let primary = match reply::value(address)? {
        Value::Nil => return Ok(None),
        Value::Array(parts) => self::address(&parts)?,
        _ => return Err(reply::nonsense()),
    };
    let settled = !flags.split(',').any(|flag| flag == "failover_in_progress");
    Ok(Some(SentinelAnswer {
        primary: Primary { address: primary, epoch: epoch.ok_or_else(reply::nonsense)? },
        settled,
    }))
}

fn says_no_such_service(error: &StoreError) -> bool {
    error.kind == ErrorKind::Server
        && error.source.as_ref().is_some_and(|said| said.to_string().contains("No such master"))
}

fn address(parts: &[Value]) -> Result<Address, StoreError> {
    let [host, port] = parts else { return Err(reply::nonsense()) };
    let port = reply::text(port)?.parse().map_err(|_| reply::nonsense())?;
    Ok(Address { host: reply::text(host)?.into(), port })
}

/// A reply that lists names and values in turn.
fn fields(reply: Value) -> Result<Vec<(String, String)>, StoreError> {
    let pair = |pair: &[Value]| Some((reply::text(&pair[0]).ok()?, reply::text(&pair[1]).ok()?));
    match reply {
        Value::Array(words) => Ok(words.chunks_exact(2).filter_map(pair).collect()),
        Value::Map(pairs) => {
            Ok(pairs.into_iter().filter_map(|(name, value)| pair(&[name, value])).collect())
        }
        _ => Err(reply::nonsense()),
    }
}

fn field<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(its, _)| its == name).map(|(_, value)| value.as_str())
}

/// The primary, by the answers of some of `sentinels` sentinels, and by the one `known` before.
///
/// The highest epoch decides, because each failover has a higher one, and a sentinel that was cut
/// off has not heard of it. Without that rule, one such sentinel could lead clients back to an old
/// primary that still takes writes. Otherwise a majority of the sentinels has to name the other
/// address: their operator has made them forget the service, and begin again. All epochs are 0
/// where each failover is made in that way.
pub(super) fn choose(
    answers: &[SentinelAnswer],
    sentinels: usize,
    known: Option<&Primary>,
) -> Option<Primary> {
    let votes = |answer: &SentinelAnswer| {
        answers.iter().filter(|other| other.primary.address == answer.primary.address).count()
    };
    let best = answers
        .iter()
        .max_by_key(|answer| (answer.primary.epoch, answer.settled, votes(answer)))?;
    match known {
        Some(known) if best.primary.epoch <= known.epoch && votes(best) * 2 <= sentinels => {
            Some(known.clone())
        }
        _ => Some(best.primary.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(port: u16, epoch: u64) -> Primary {
        Primary { address: Address { host: "10.0.0.1".into(), port }, epoch }
    }

    fn says(port: u16, epoch: u64) -> SentinelAnswer {
        SentinelAnswer { primary: primary(port, epoch), settled: true }
    }

    #[test]
    fn the_highest_epoch_decides_whoever_answers_first() {
        assert_eq!(choose(&[], 3, None), None);
        let answers = [says(1, 4), says(2, 5), says(1, 4)];
        assert_eq!(choose(&answers, 3, None), Some(primary(2, 5)));
        assert_eq!(choose(&answers, 3, Some(&primary(1, 4))), Some(primary(2, 5)));
    }

    #[test]
    fn among_equal_epochs_a_settled_answer_and_the_more_common_one_decide() {
        let unsettled = SentinelAnswer { settled: false, ..says(1, 5) };
        assert_eq!(choose(&[unsettled, says(2, 5)], 3, None), Some(primary(2, 5)));
        assert_eq!(choose(&[says(1, 5), says(2, 5), says(1, 5)], 3, None), Some(primary(1, 5)));
    }

    #[test]
    fn no_minority_leads_back_to_a_lower_epoch() {
        let known = primary(2, 5);
        assert_eq!(choose(&[says(1, 4)], 3, Some(&known)), Some(known.clone()));
        assert_eq!(choose(&[says(1, 4), says(1, 4)], 4, Some(&known)), Some(known.clone()));
        let majority = [says(1, 0), says(1, 0)];
        assert_eq!(choose(&majority, 3, Some(&known)), Some(primary(1, 0)));
    }

    fn texts(words: &[&str]) -> Value {
        Value::Array(words.iter().map(|word| Value::BulkString(word.as_bytes().into())).collect())
    }

    fn error(said: &str) -> Value {
        let reply = redis::parse_redis_value(format!("-{said}\r\n").as_bytes());
        reply.unwrap()
    }

    #[test]
    fn replies_are_read() {
        let master = texts(&[
            "name",
            "mymaster",
            "ip",
            "10.0.0.1",
            "flags",
            "master,failover_in_progress",
            "config-epoch",
            "7",
        ]);
        let answer = read(vec![master.clone(), texts(&["10.0.0.2", "6380"])]).unwrap().unwrap();
        assert_eq!(answer.primary.address, Address { host: "10.0.0.2".into(), port: 6380 });
        assert_eq!((answer.primary.epoch, answer.settled), (7, false));
        let unknown = error("ERR No such master with that name");
        assert_eq!(read(vec![unknown, Value::Nil]).unwrap(), None);
        assert_eq!(read(vec![master.clone(), Value::Nil]).unwrap(), None);
        assert!(read(vec![master.clone(), Value::Int(3)]).is_err());
        assert!(read(vec![Value::Okay, Value::Nil]).is_err());
        assert!(read(vec![master]).is_err());
    }

    #[test]
    fn as_many_questions_are_asked_as_replies_are_read() {
        let asked = String::from_utf8(questions("mymaster")).unwrap();
        let words = ["MASTER", "GET-MASTER-ADDR-BY-NAME"];
        assert!(words.iter().all(|word| asked.contains(&format!("\r\n{word}\r\n"))));
        assert_eq!(asked.matches("\r\nSENTINEL\r\n").count(), REPLIES);
    }

    #[test]
    fn a_sentinel_that_refuses_is_not_one_that_does_not_know_the_service() {
        let refuses = |words: &str| vec![error(words), Value::Nil];
        let denied = read(refuses("NOPERM this user has no permissions")).unwrap_err();
        assert_eq!(denied.kind, ErrorKind::Denied);
        let broken = read(refuses("ERR something else")).unwrap_err();
        assert_eq!(broken.kind, ErrorKind::Server);
        let denied = read(refuses("NOPERM No such master for this user")).unwrap_err();
        assert_eq!(denied.kind, ErrorKind::Denied);
    }

    #[test]
    fn a_reply_of_the_newer_protocol_is_read_too() {
        let text = |word: &str| Value::BulkString(word.as_bytes().into());
        let master =
            Value::Map(vec![(text("flags"), text("master")), (text("config-epoch"), text("3"))]);
        let answer = read(vec![master, texts(&["10.0.0.2", "6380"])]).unwrap().unwrap();
        assert_eq!((answer.primary.epoch, answer.settled), (3, true));
    }

    #[test]
    fn half_of_the_sentinels_are_no_majority() {
        let known = primary(2, 5);
        let two = [says(1, 4), says(1, 4)];
        assert_eq!(choose(&two, 4, Some(&known)), Some(known.clone()));
        assert_eq!(choose(&two, 3, Some(&known)), Some(primary(1, 4)));
        let three = [says(1, 4), says(1, 4), says(1, 4)];
        assert_eq!(choose(&three, 5, Some(&known)), Some(primary(1, 4)));
        // An equal epoch is no failover either.
        assert_eq!(choose(&[says(1, 5)], 3, Some(&known)), Some(known));
    }
}
