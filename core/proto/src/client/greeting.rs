//! The first commands of a connection: who we are, which database, and a question whose answer says where it leads.

use std::collections::VecDeque;

use super::{Address, Login};
use crate::resp::{Element, Elements, put_argument, put_count};

/// Refusals of CLIENT SETNAME: the name only helps a reader of CLIENT LIST, and is left out where it is forbidden.
const NAME_REFUSALS: [&str; 3] = ["NOPERM", "unknown command", "unknown subcommand"];

pub(crate) fn packed(words: &[&str]) -> Vec<u8> {
    let mut text = Vec::new();
    put_count(&mut text, words.len());
    for word in words {
        put_argument(&mut text, word.as_bytes());
    }
    text
}

/// What has been sent and is not answered, one command after the other; the last is the question.
#[derive(Debug)]
pub(crate) struct Greeting {
    commands: VecDeque<&'static str>,
    password: String,
}

impl Greeting {
    /// Begin, and return what is to be written.
    pub fn begin(login: &Login, question: &[&str]) -> (Self, Vec<u8>) {
        let (mut commands, mut text) = (VecDeque::new(), Vec::new());
        let mut put = |name: &'static str, words: &[&str]| {
            commands.push_back(name);
            text.extend(packed(words));
        };
        if !login.password.is_empty() {
            let words: &[&str] = &["AUTH", &login.username, &login.password];
            let anonymous: &[&str] = &["AUTH", &login.password];
            put("AUTH", if login.username.is_empty() { anonymous } else { words });
        }
        if login.database > 0 {
            put("SELECT", &["SELECT", &login.database.to_string()]);
        }
        put("CLIENT SETNAME", &["CLIENT", "SETNAME", "korvet"]);
        put("", question);
        (Self { commands, password: login.password.clone() }, text)
    }

    /// Take the next reply; true if it is the answer to the question. Fails with the words of a refusal.
    pub fn take(&mut self, reply: &[u8]) -> Result<bool, String> {
        let command = self.commands.pop_front().unwrap_or_default();
        if command.is_empty() {
            return Ok(true);
        }
        let Some(Element::Error(text)) = Elements::of(reply).next() else { return Ok(false) };
        let mut text = String::from_utf8_lossy(text).into_owned();
        if command == "CLIENT SETNAME" && NAME_REFUSALS.iter().any(|words| text.contains(words)) {
            return Ok(false);
        }
        // Redis repeats the arguments of a command that it does not know.
        if !self.password.is_empty() {
            text = text.replace(&self.password, "***");
        }
        Err(format!("refused the connection ({command}): {text}"))
    }
}

/// The replication id of a master by its answer to INFO replication: the name of its history of writes.
///
/// Empty for a replica, and where Redis does not say it. Fails with the words of a refusal.
pub(crate) fn history_of(reply: &[u8]) -> Result<String, String> {
    let text = match Elements::of(reply).next() {
        Some(Element::Bulk(text) | Element::Verbatim(text)) => String::from_utf8_lossy(text),
        Some(Element::Error(text)) if !text.starts_with(b"NOPERM") => {
            return Err(format!("refused INFO: {}", String::from_utf8_lossy(text)));
        }
        _ => return Ok(String::new()),
    };
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(if field("role") == Some("master") {
        field("master_replid").unwrap_or_default().to_owned()
    } else {
        String::new()
    })
}

/// The master that a Sentinel names by its answer to SENTINEL GET-MASTER-ADDR-BY-NAME. Fails with the reason.
pub(crate) fn named_master(reply: &[u8], master: &str) -> Result<Address, String> {
    let mut elements = Elements::of(reply);
    match (elements.next(), elements.next(), elements.next()) {
        (Some(Element::Array(2)), Some(Element::Bulk(host)), Some(Element::Bulk(port))) => {
            let port = std::str::from_utf8(port).ok().and_then(|digits| digits.parse().ok());
            let port = port.filter(|port| *port > 0).ok_or("names a master without a port")?;
            Ok(Address { host: String::from_utf8_lossy(host).into_owned(), port })
        }
        (Some(Element::Null), ..) => Err(format!("knows no master {master}")),
        (Some(Element::Error(text)), ..) => Err(format!("answered {}", String::from_utf8_lossy(text))),
        _ => Err("answered something else than a master".to_owned()),
    }
}
