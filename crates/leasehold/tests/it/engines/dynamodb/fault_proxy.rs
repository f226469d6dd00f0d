//! HTTP proxy in proxy of the emulator that injects faults: lost, replaced and delayed responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What the proxy does with one request.
#[derive(Debug, Clone)]
pub(super) enum Action {
    /// Forwards the request and its response.
    Pass,
    /// Forwards the request, and drops its response.
    LoseResponse,
    /// Forwards the request after this delay, even if the client has gone.
    HoldBack(Duration),
    /// Responds without forwarding: a status, and an error of the service as `Name: message`.
    Refuse(u16, &'static str),
    /// Forwards the request, and moves the `Date` of the response by this number of seconds.
    Redate(i64),
}

/// Fault-injecting proxy. It stops with the test.
pub(super) struct FaultProxy {
    pub(super) port: u16,
    /// Number of requests of any kind.
    pub(super) requests: Arc<AtomicU32>,
}

type Decide = Arc<dyn Fn(&str) -> Action + Send + Sync>;

impl FaultProxy {
    /// Starts a proxy for the endpoint of `url`; `decide` gets the name of the operation.
    pub(super) async fn before(url: &str, decide: impl Fn(&str) -> Action + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, requests) = (listener.local_addr().unwrap().port(), Arc::<AtomicU32>::default());
        let (endpoint, count) = (host(url).to_owned(), requests.clone());
        let decide: Decide = Arc::new(decide);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (endpoint, decide, count) = (endpoint.clone(), decide.clone(), count.clone());
                tokio::spawn(async move { drop(serve(client, &endpoint, &decide, &count).await) });
            }
        });
        Self { port, requests }
    }

    /// Returns the URL of the same table through this proxy.
    pub(super) fn url(&self, url: &str) -> String {
        url.replace(host(url), &format!("127.0.0.1:{}", self.port))
    }
}

/// Applies the action to the first request for this operation, and forwards all others.
pub(super) fn once(operation: &'static str, fate: Action) -> impl Fn(&str) -> Action + Send + Sync {
    let done = AtomicBool::new(false);
    move |requested| {
        if requested == operation && !done.swap(true, Ordering::SeqCst) { fate.clone() } else { Action::Pass }
    }
}

fn host(url: &str) -> &str {
    let (_, rest) = url.split_once("endpoint=http://").expect("the tests' URL has an endpoint");
    rest.split('&').next().unwrap()
}

async fn serve(client: TcpStream, endpoint: &str, decide: &Decide, count: &AtomicU32) -> std::io::Result<()> {
    let server = TcpStream::connect(endpoint).await?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let (mut client, mut server) = (BufReader::new(client), BufReader::new(server));
    loop {
        let (head, body) = message(&mut client).await?;
        count.fetch_add(1, Ordering::SeqCst);
        let target = head.lines().find(|line| line.to_lowercase().starts_with("x-amz-target"));
        let operation = target.and_then(|line| line.rsplit('.').next()).unwrap_or_default().trim();
        let fate = decide(operation);
        match &fate {
            Action::HoldBack(time) => {
                let time = *time;
                // The request is forwarded even if its caller has gone.
                let (mut server, head, body) =
                    (TcpStream::connect(endpoint).await?, head.clone(), body.clone());
                let passed = tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    server.write_all(head.as_bytes()).await?;
                    server.write_all(&body).await?;
                    message(&mut BufReader::new(server)).await
                });
                let (head, body) = passed.await.map_err(std::io::Error::other)??;
                client.get_mut().write_all(head.as_bytes()).await?;
                client.get_mut().write_all(&body).await?;
                continue;
            }
            Action::Refuse(status, error) => {
                let (name, text) = error.split_once(": ").unwrap_or((error, "no"));
                let body =
                    format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{name}","message":"{text}"}}"#);
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                client.get_mut().write_all((head + &body).as_bytes()).await?;
                continue;
            }
            Action::Pass | Action::LoseResponse | Action::Redate(_) => {}
        }
        server.get_mut().write_all(head.as_bytes()).await?;
        server.get_mut().write_all(&body).await?;
        let (head, body) = message(&mut server).await?;
        let head = match fate {
            Action::LoseResponse => return Ok(()),
            Action::Redate(seconds) => with_date(&head, seconds),
            _ => head,
        };
        client.get_mut().write_all(head.as_bytes()).await?;
        client.get_mut().write_all(&body).await?;
    }
}

/// Reads one message: its head including the empty line, and its body.
async fn message(from: &mut BufReader<TcpStream>) -> std::io::Result<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    from.read_exact(&mut body).await?;
    Ok((head, body))
}

fn with_date(head: &str, seconds: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let then = http_date(i64::try_from(now).unwrap() + seconds);
    let lines = head.split_inclusive("\r\n").map(|line| {
        if line.to_lowercase().starts_with("date:") { format!("date: {then}\r\n") } else { line.to_owned() }
    });
    lines.collect()
}

/// Formats a date for an HTTP header.
fn http_date(seconds: i64) -> String {
    let days = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text =
        leasehold::model::Timestamp::from_micros(u64::try_from(seconds).unwrap() * 1_000_000).to_string();
    let (date, time) = text.trim_end_matches('Z').split_once('T').unwrap();
    let [year, month, day] = date.split('-').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let weekday = days[usize::try_from(seconds / 86_400 % 7).unwrap()];
    format!("{weekday}, {day} {} {year} {time} GMT", months[month.parse::<usize>().unwrap() - 1])
}
