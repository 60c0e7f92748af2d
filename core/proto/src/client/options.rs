//! Servers by their addresses, logins, and the limits of a client and its lanes.

use std::fmt::{self, Display};
use std::time::Duration;

/// Where a server is: a host and a port, or the path of a Unix socket and 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl Display for Address {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port, self.host.contains(':')) {
            (0, _) => to.write_str(&self.host),
            (port, true) => write!(to, "[{}]:{port}", self.host),
            (port, false) => write!(to, "{}:{port}", self.host),
        }
    }
}

/// What to connect to.
#[derive(Clone, Debug)]
pub enum Target {
    /// One server.
    Server(Address),
    /// The master of a name, by any of these Sentinels.
    #[allow(missing_docs)]
    Sentinels { addresses: Vec<Address>, master: String },
    /// A cluster, by any of these nodes.
    Cluster(Vec<Address>),
}

impl Display for Target {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |addresses: &[Address]| addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Server(address) => address.fmt(to),
            Self::Sentinels { addresses, master } => write!(to, "{master} (Sentinels {})", listed(addresses)),
            Self::Cluster(addresses) => write!(to, "cluster {}", listed(addresses)),
        }
    }
}

/// Who we are at a server; empty and 0 for none.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Login {
    pub username: String,
    pub password: String,
    pub database: u32,
}

/// What a client needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to connect to.
    pub target: Target,
    /// Who we are at servers that keep records.
    pub login: Login,
    /// Who we are at Sentinels.
    pub sentinel_login: Login,
    /// How long a call may take to be sent and answered, and how long it follows a slot on its way. The last time that it is
    /// sent, and when it waits for room for large replies, it has this time once more.
    pub timeout: Duration,
    /// How long an attempt to connect may take.
    pub connect_timeout: Duration,
    /// Of the random numbers that spread attempts to connect.
    pub seed: u64,
    /// Whether a Sentinel is watched: a client that is seldom used learns of a failover by its next request.
    pub is_watching: bool,
}

/// The limits of a lane's connections (`pipeline::Limits`).
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct LaneOptions {
    pub commands_max: usize,
    pub bytes_max: usize,
    pub reply_bytes_max: usize,
    /// Commands that are sent before all others over each connection, each packed; their replies are dropped.
    pub first: Vec<Vec<u8>>,
    /// A feed: after so long a silence it is asked whether the server lives.
    pub ping: Option<Duration>,
}
