//! A front before the emulator that does what networks and services do: lose answers, send others, hold them up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What becomes of one request.
#[derive(Debug, Clone)]
pub(super) enum Fate {
    /// It is passed on, and so is its answer.
    Pass,
    /// It is passed on, and its answer is lost.
    LoseAnswer,
    /// It is held back for so long, whoever waits for it, and then passed on.
    HoldBack(Duration),
    /// It is answered here: a status, and an error of the service as `Name: what it says`.
    Refuse(u16, &'static str),
    /// It is passed on, and its answer says that it is so many seconds later.
    Redate(i64),
}

/// The front. It ends with the test.
pub(super) struct Front {
    pub(super) port: u16,
    /// How many requests have come, of any kind.
    pub(super) requests: Arc<AtomicU32>,
}

type Decide = Arc<dyn Fn(&str) -> Fate + Send + Sync>;

impl Front {
    /// Stands before the endpoint of `url`; `decide` is given the operation's name.
    pub(super) async fn before(url: &str, decide: impl Fn(&str) -> Fate + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, requests) = (listener.local_addr().unwrap().port(), Arc::<AtomicU32>::default());
        let (back, count): (_, _) = (host(url).to_owned(), requests.clone());
        let decide: Decide = Arc::new(decide);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (back, decide, count) = (back.clone(), decide.clone(), count.clone());
                tokio::spawn(async move { drop(serve(client, &back, &decide, &count).await) });
            }
        });
        Self { port, requests }
    }

    /// The same table through this front.
    pub(super) fn url(&self, url: &str) -> String {
        url.replace(host(url), &format!("127.0.0.1:{}", self.port))
    }
}

/// Once, at the first request for this operation.
pub(super) fn once(operation: &'static str, fate: Fate) -> impl Fn(&str) -> Fate + Send + Sync {
    let done = AtomicBool::new(false);
    move |asked| {
        if asked == operation && !done.swap(true, Ordering::SeqCst) { fate.clone() } else { Fate::Pass }
    }
}

fn host(url: &str) -> &str {
    let (_, rest) = url.split_once("endpoint=http://").expect("the tests' URL has an endpoint");
    rest.split('&').next().unwrap()
}

async fn serve(client: TcpStream, back: &str, decide: &Decide, count: &AtomicU32) -> std::io::Result<()> {
    let server = TcpStream::connect(back).await?;
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
            Fate::HoldBack(time) => {
                let time = *time;
                // A lost caller does not call its request back.
                let (mut server, head, body) = (TcpStream::connect(back).await?, head.clone(), body.clone());
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
            Fate::Refuse(status, error) => {
                let (name, says) = error.split_once(": ").unwrap_or((error, "no"));
                let body =
                    format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{name}","message":"{says}"}}"#);
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                client.get_mut().write_all((head + &body).as_bytes()).await?;
                continue;
            }
            Fate::Pass | Fate::LoseAnswer | Fate::Redate(_) => {}
        }
        server.get_mut().write_all(head.as_bytes()).await?;
        server.get_mut().write_all(&body).await?;
        let (head, body) = message(&mut server).await?;
        let head = match fate {
            Fate::LoseAnswer => return Ok(()),
            Fate::Redate(seconds) => redated(&head, seconds),
            _ => head,
        };
        client.get_mut().write_all(head.as_bytes()).await?;
        client.get_mut().write_all(&body).await?;
    }
}

/// One message: its head with the empty line, and its body.
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

fn redated(head: &str, seconds: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let then = aws_date(i64::try_from(now).unwrap() + seconds);
    let lines = head.split_inclusive("\r\n").map(|line| {
        if line.to_lowercase().starts_with("date:") { format!("date: {then}\r\n") } else { line.to_owned() }
    });
    lines.collect()
}

/// As HTTP writes it.
fn aws_date(seconds: i64) -> String {
    let days = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text =
        leasehold::model::Timestamp::from_micros(u64::try_from(seconds).unwrap() * 1_000_000).to_string();
    let (date, time) = text.trim_end_matches('Z').split_once('T').unwrap();
    let [year, month, day] = date.split('-').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let weekday = days[usize::try_from(seconds / 86_400 % 7).unwrap()];
    format!("{weekday}, {day} {} {year} {time} GMT", months[month.parse::<usize>().unwrap() - 1])
}
