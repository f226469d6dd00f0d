//! Opens connections to one server, through Sentinels or to a Cluster, and sends commands on them.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::SingleNodeRoutingInfo;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, RedisResult, RetryMethod, TlsCertificates, TlsMode, Value,
};

use super::super::options::{RedisOptions, Topology};
use crate::error::{Error, Result, StoreErrorKind};
use crate::store::backoff::ExponentialBackoff;
use crate::store::repeat::Repeat;

/// Timeouts for connecting and for a reply. A call may need both a new connection and a reply.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Idle time of a connection after which the system asks whether the server is there, and the interval of further
/// questions.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Time without an acknowledgement after which the system ends a connection.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of retries of a command that a Cluster refuses temporarily, and the delays between them.
const CLUSTER_RETRIES: u32 = 4;
const CLUSTER_BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(20), Duration::from_millis(160));
/// Timeout for replicas to acknowledge a write, in milliseconds.
pub(crate) const REPLICA_TIMEOUT_MILLIS: u32 = 1000;
/// Maximum duration of a call, including retries.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Opens connections to the servers of a store.
pub(crate) struct Connector {
    target: Target,
    pub(super) display_url: String,
}

enum Target {
    Single(Client),
    /// Client, and the name of the service.
    Sentinel(tokio::sync::Mutex<SentinelClient>, String),
    Cluster(Box<dyn Fn() -> ClusterClientBuilder + Send + Sync>),
}

/// Connection shared by many callers: their commands are pipelined.
#[derive(Clone)]
pub(crate) enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Identity of a connection on its server, by which another connection can end it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientIdentity {
    id: String,
    address: String,
}

impl Connector {
    pub(crate) fn new(options: &RedisOptions) -> Result<Self> {
        // The program may have chosen a provider already; then that one is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let certificates = certificates(options)?;
        let misconfigured = |error| super::super::error::explain(&options.display_url, error);
        let address = |(host, port): &(String, u16)| {
            let (host, port) = (host.clone(), *port);
            if options.tls {
                ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
            } else {
                ConnectionAddr::Tcp(host, port)
            }
        };
        let target = match &options.topology {
            Topology::One => {
                let node = options.nodes.first().map(address);
                let node = node.unwrap_or_else(|| ConnectionAddr::Tcp("127.0.0.1".to_owned(), 6379));
                let info = node.into_connection_info().map_err(misconfigured)?;
                let info = info.set_redis_settings(settings(options)).set_tcp_settings(tcp());
                let client = match certificates {
                    Some(certificates) => Client::build_with_tls(info, certificates),
                    None => Client::open(info),
                };
                Target::Single(client.map_err(misconfigured)?)
            }
            Topology::Sentinel(service) => {
                let sentinel = sentinel(options, service, certificates, options.nodes.iter().map(address));
                Target::Sentinel(tokio::sync::Mutex::new(sentinel.map_err(misconfigured)?), service.clone())
            }
            Topology::Cluster => {
                let nodes: Vec<_> = options.nodes.iter().map(address).collect();
                let options = options.clone();
                Target::Cluster(Box::new(move || cluster(&options, &nodes, certificates.clone())))
            }
        };
        Ok(Self { target, display_url: options.display_url.clone() })
    }

    /// Opens a connection whose driver runs on the current runtime.
    pub(super) async fn open(&self) -> RedisResult<Connection> {
        self.open_with(None).await
    }

    /// Opens a connection for subscriptions; published messages go to `push_handler`.
    pub(crate) async fn open_subscriber(
        &self,
        push_handler: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<Connection> {
        self.open_with(Some(push_handler)).await
    }

    async fn open_with(&self, push_handler: Option<Arc<dyn AsyncPushSender>>) -> RedisResult<Connection> {
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let is_subscriber = push_handler.is_some();
        if let Some(push_handler) = &push_handler {
            let push_handler = push_handler.clone();
            config = config.set_push_sender(move |info| push_handler.send(info));
        }
        let client = match &self.target {
            Target::Single(client) => client.clone(),
            // Queried each time: the current master counts.
            Target::Sentinel(sentinel, _) => sentinel.lock().await.async_get_client().await?,
            Target::Cluster(builder) => {
                let mut builder = builder();
                if let Some(push_handler) = push_handler {
                    builder = builder
                        .use_protocol(ProtocolVersion::RESP3)
                        .push_sender(move |info| push_handler.send(info));
                }
                return builder.build()?.get_async_connection().await.map(Connection::Cluster);
            }
        };
        let client = if is_subscriber {
            let info = client.get_connection_info().clone();
            let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            Client::open(info.set_redis_settings(settings))?
        } else {
            client
        };
        client.get_multiplexed_async_connection_with_config(&config).await.map(Connection::Single)
    }

    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.target, Target::Cluster(_))
    }

    /// Whether the Sentinels know the service, judged after this error.
    pub(crate) async fn knows_service(&self, error: &RedisError) -> bool {
        let Target::Sentinel(sentinel, service) = &self.target else { return true };
        if error.kind() != ErrorKind::MasterNameNotFoundBySentinel {
            return true;
        }
        let found = async {
            let client = sentinel.lock().await.async_get_sentinel_client().await?;
            let mut connection = client.get_multiplexed_async_connection().await?;
            let mut cmd = redis::cmd("SENTINEL");
            cmd.arg("GET-MASTER-ADDR-BY-NAME").arg(service).query_async::<Value>(&mut connection).await
        };
        !matches!(found.await, Ok(Value::Nil))
    }
}

/// Command to send.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) cmd: &'a Cmd,
    /// Commands that follow on the same connection, the last of them `WAIT`. Then the reply is a list of all
    /// replies.
    pub(crate) then: &'a [Cmd],
    /// Whether the command may be sent again once it may have begun.
    pub(crate) repeat: Repeat,
}

impl Request<'_> {
    pub(super) const fn waits_for_replicas(&self) -> bool {
        !self.then.is_empty()
    }

    /// Whether the command may be sent again after this error; a refused command was not executed. If other
    /// commands follow, the server may have refused only one of those.
    pub(super) fn may_be_sent_again(&self, error: &RedisError) -> bool {
        let not_sent = error.kind() == ErrorKind::ClusterConnectionNotFound;
        let refused = error.code().is_some() && self.then.is_empty();
        self.repeat == Repeat::Safe || not_sent || refused
    }
}

impl<'a> From<&'a Cmd> for Request<'a> {
    fn from(cmd: &'a Cmd) -> Self {
        Self { cmd, then: &[], repeat: Repeat::Safe }
    }
}

impl Connection {
    pub(crate) async fn send(&self, request: Request<'_>) -> RedisResult<Value> {
        match self {
            Self::Single(connection) if request.waits_for_replicas() => {
                let mut pipe = redis::pipe();
                pipe.add_command(request.cmd.clone()).ignore_errors();
                for then in request.then {
                    pipe.add_command(then.clone());
                }
                let replies: Vec<RedisResult<Value>> = pipe.query_async(&mut connection.clone()).await?;
                replies.into_iter().collect::<RedisResult<_>>().map(Value::Array)
            }
            Self::Single(connection) => request.cmd.query_async(&mut connection.clone()).await,
            Self::Cluster(connection) => Box::pin(send_to_cluster(connection.clone(), request)).await,
        }
    }

    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        match self {
            Self::Single(connection) => connection.clone().subscribe(channel).await,
            // Within one shard: a message to all nodes for each hand-over would not scale.
            Self::Cluster(connection) => connection.clone().ssubscribe(channel).await,
        }
    }

    /// Queries the identity of this connection. Returns `None` if the server refuses: not every server
    /// permits this to every user.
    pub(super) async fn identity(&self) -> RedisResult<Option<ClientIdentity>> {
        if matches!(self, Self::Cluster(_)) {
            return Ok(None);
        }
        let info = match self.send((&*redis::cmd("CLIENT").arg("INFO")).into()).await {
            Err(error) if is_refusal(&error) => {
                tracing::debug!(%error, "the server does not tell the identity of a connection");
                return Ok(None);
            }
            info => info?,
        };
        Ok(redis::from_redis_value::<String>(info).ok().and_then(|info| ClientIdentity::of(&info)))
    }

    /// Ends another connection of this process, so that no command sent on it can take effect from
    /// here on, unless the server refuses. After a restart of the server the id alone could belong to
    /// another client; id and address together belong to this process or to no connection.
    pub(super) async fn kill(&self, identity: &ClientIdentity) -> RedisResult<()> {
        let kill = redis::cmd("CLIENT")
            .arg("KILL")
            .arg("ID")
            .arg(&identity.id)
            .arg("ADDR")
            .arg(&identity.address)
            .take();
        match self.send((&kill).into()).await {
            Err(error) if is_refusal(&error) => {
                tracing::debug!(%error, "a broken connection could not be ended on the server");
                Ok(())
            }
            reply => reply.map(drop),
        }
    }
}

impl ClientIdentity {
    /// Reads the answer to `CLIENT INFO`.
    fn of(info: &str) -> Option<Self> {
        let part = |key: &str| info.split(' ').find_map(|part| part.strip_prefix(key)).map(str::to_owned);
        Some(Self { id: part("id=")?, address: part("addr=")? })
    }
}

/// Whether the server refuses a command for good: it does not know it, or the user has no permission.
/// Otherwise a later attempt may succeed.
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    error.code().is_some_and(|code| !matches!(code, "BUSY" | "LOADING"))
}

/// Sends a command to the node of a Cluster that has its key; retries after temporary refusals.
async fn send_to_cluster(mut connection: ClusterConnection, request: Request<'_>) -> RedisResult<Value> {
    let attempts = async {
        for attempt in 0.. {
            let mut reply: RedisResult<Value> = request.cmd.query_async(&mut connection).await;
            // Part of the same attempt: the new node may refuse the command, and that is the answer then.
            if let Some(node) = reply.as_ref().err().and_then(asked_node) {
                reply = send_redirected(&mut connection, request.cmd, node).await;
            }
            let Err(error) = &reply else { return reply };
            if attempt == CLUSTER_RETRIES || error.is_timeout() || !request.may_be_sent_again(error) {
                return reply;
            }
            if matches!(error.retry_method(), RetryMethod::NoRetry) {
                return reply;
            }
            // The driver refreshes the map of slots, or reconnects, before the next command.
            tokio::time::sleep(CLUSTER_BACKOFF.delay(attempt)).await;
        }
        unreachable!("the last attempt returns")
    };
    let late = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    tokio::time::timeout(CONNECT_TIMEOUT + RESPONSE_TIMEOUT, attempts).await.unwrap_or_else(late)
}

/// Returns the node to which a node of a Cluster redirects this one command.
fn asked_node(error: &RedisError) -> Option<(String, u16)> {
    if !matches!(error.retry_method(), RetryMethod::AskRedirect) {
        return None;
    }
    let (node, _) = error.redirect_node()?;
    let (host, port) = node.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// Sends a command after `ASKING`: while a key moves, its new node answers only requests that the
/// old node has redirected.
async fn send_redirected(
    connection: &mut ClusterConnection,
    cmd: &Cmd,
    (host, port): (String, u16),
) -> RedisResult<Value> {
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(cmd.clone());
    let node = SingleNodeRoutingInfo::ByAddress { host, port };
    let mut replies = connection.route_pipeline(both, 1, 1, node).await?;
    replies.pop().unwrap_or(Value::Nil).extract_error()
}

fn settings(options: &RedisOptions) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default().set_db(i64::from(options.db)).set_skip_set_lib_name();
    if let Some(user) = &options.login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &options.login.password {
        settings = settings.set_password(password);
    }
    settings
}

/// A connection that only receives messages notices within a minute that its server is gone without a word.
fn tcp() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(UNACKNOWLEDGED_TIMEOUT);
    settings
}

fn certificates(options: &RedisOptions) -> Result<Option<TlsCertificates>> {
    let Some(path) = &options.ca else { return Ok(None) };
    let pem = std::fs::read(path).map_err(|error| {
        let message = format!("the certificates in {} cannot be read", path.display());
        Error::store(StoreErrorKind::Misconfigured, message, "name a readable PEM file with ?ca=PATH")
            .because(error)
    })?;
    Ok(Some(TlsCertificates { client_tls: None, root_cert: Some(pem) }))
}

fn sentinel(
    options: &RedisOptions,
    service: &str,
    certificates: Option<TlsCertificates>,
    nodes: impl Iterator<Item = ConnectionAddr>,
) -> RedisResult<SentinelClient> {
    let mut builder = SentinelClientBuilder::new(nodes, service, SentinelServerType::Master)?
        .set_client_to_redis_db(i64::from(options.db))
        .set_client_to_redis_tcp_settings(tcp());
    if options.tls {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
    }
    if let Some(certificates) = certificates {
        builder = builder
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_certificates(certificates);
    }
    if let Some(user) = &options.login.user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = &options.login.password {
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(user) = &options.sentinel_login.user {
        builder = builder.set_client_to_sentinel_username(user);
    }
    if let Some(password) = &options.sentinel_login.password {
        builder = builder.set_client_to_sentinel_password(password);
    }
    builder.build()
}

fn cluster(
    options: &RedisOptions,
    nodes: &[ConnectionAddr],
    certificates: Option<TlsCertificates>,
) -> ClusterClientBuilder {
    let mut builder = ClusterClientBuilder::new(nodes.iter().cloned())
        .connection_timeout(CONNECT_TIMEOUT)
        .response_timeout(RESPONSE_TIMEOUT)
        .overall_response_timeout(Some(CONNECT_TIMEOUT + RESPONSE_TIMEOUT))
        // The driver does not know which commands may be sent twice: see `send_to_cluster`.
        .retries(0)
        .tcp_settings(tcp());
    if options.tls {
        builder = builder.tls(TlsMode::Secure);
    }
    if let Some(certificates) = certificates {
        builder = builder.certs(certificates);
    }
    if let Some(user) = &options.login.user {
        builder = builder.username(user);
    }
    if let Some(password) = &options.login.password {
        builder = builder.password(password);
    }
    builder
}
