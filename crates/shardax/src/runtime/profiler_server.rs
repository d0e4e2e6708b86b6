//! A server that records profiles of a running program on request, by HTTP.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::memory_profile::device_memory_profile;
use crate::error::{AtCaller, Result, err};
use crate::timeline;

/// The server of this process.
struct Server {
    address: SocketAddr,
    /// Set to `true` to end the server.
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

// A process has at most one server, as in JAX.
static SERVER: Mutex<Option<Server>> = Mutex::new(None);

fn server() -> MutexGuard<'static, Option<Server>> {
    SERVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The longest profile, in milliseconds.
const MAX_PROFILE_MS: u64 = 600_000;
/// The time within which a client must send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time within which a client must receive the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum number of concurrent clients.
const MAX_CLIENTS: usize = 64;
/// The maximum number of bytes of a request.
const MAX_REQUEST: usize = 16 << 10;

/// Starts a thread that records profiles of this process on request, until you call [`stop_server`] (JAX's function of
/// this name). Returns the port; pass 0 to let the system choose one.
///
/// JAX's server speaks gRPC with TensorBoard's "Capture profile" button; this one answers HTTP requests from this host:
///
/// | request | answer |
/// |---|---|
/// | `/trace?ms=500` | what the threads and devices do in the next 500 ms, for Perfetto and chrome://tracing |
/// | `/xplane?ms=500` | the same for TensorBoard, which looks for it below its log directory as `plugins/profile/<run>/<host>.xplane.pb` |
/// | `/memory` | [`device_memory_profile`], so that `pprof http://localhost:9012/memory` shows it |
///
/// ```text
/// curl -o step.trace.json.gz 'localhost:9012/trace?ms=500'
/// ```
///
/// `ms` is from 1 to 600,000, by default 1,000. The server listens on the loopback interface only, because a profile
/// contains names of the program; use `ssh -L 9012:localhost:9012 host` to reach it from elsewhere. A request whose
/// `Host` is not this host gets status 403. Only one profile is recorded at a time, so a request during a recording
/// gets status 409.
///
/// ```
/// # use std::io::{Read, Write};
/// let port = shardax::profiler::start_server(0)?;
/// let mut client = std::net::TcpStream::connect(("localhost", port))?;
/// client.write_all(b"GET /memory HTTP/1.1\r\n\r\n")?;
/// let mut answer = Vec::new();
/// client.read_to_end(&mut answer)?;
/// assert!(answer.starts_with(b"HTTP/1.1 200 OK"));
/// shardax::profiler::stop_server()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if a server runs already, or the port is taken.
#[track_caller]
pub fn start_server(port: u16) -> Result<u16> {
    start(port).at_caller()
}

fn start(port: u16) -> Result<u16> {
    let mut running = server();
    if let Some(other) = running.as_ref() {
        return Err(err!(
            Runtime,
            "Only one profiler server can be active at a time; one listens on {}",
            other.address
        )
        .help("use the running server, or call `stop_server` first"));
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let bound = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = bound.map_err(|e| {
        err!(Runtime, "the profiler server cannot listen on port {port}: {e}")
            .help("pass a port above 1023 that no other program uses, or 0 for any port")
    })?;
    let ends = Arc::new(AtomicBool::new(false));
    let end = ends.clone();
    let thread = std::thread::Builder::new().name("profiler server".to_owned()).spawn(move || serve(&listener, &end));
    let thread = thread.map_err(|e| {
        err!(Runtime, "cannot start the thread of the profiler server: {e}")
            .help("raise the limit of threads (`ulimit -u`), or end other programs")
    })?;
    *running = Some(Server { address, ends, thread });
    Ok(address.port())
}

/// Stops the server that [`start_server`] started, without waiting for its clients. A profile that is being recorded
/// ends early.
///
/// # Errors
/// Returns an error if no server runs.
#[track_caller]
pub fn stop_server() -> Result<()> {
    let stopped = server()
        .take()
        .ok_or_else(|| err!(Runtime, "No active profiler server.").help("call `start_server` before `stop_server`"));
    let Server { address, ends, thread } = stopped.at_caller()?;
    ends.store(true, Ordering::Release);
    // Wakes the thread, because it waits for a connection.
    drop(TcpStream::connect_timeout(&address, REQUEST_TIMEOUT));
    // A panic of the thread must not reach the caller.
    drop(thread.join());
    Ok(())
}

fn serve(listener: &TcpListener, ends: &Arc<AtomicBool>) {
    // Every client holds a reference, so the number of clients is the number of other references.
    let clients = Arc::new(());
    while !ends.load(Ordering::Acquire) {
        // If a client has disconnected, the program continues.
        match listener.accept() {
            Ok((client, _)) if !ends.load(Ordering::Acquire) && Arc::strong_count(&clients) <= MAX_CLIENTS => {
                let (here, ends) = (clients.clone(), ends.clone());
                let thread = std::thread::Builder::new().name("profiler client".to_owned());
                drop(thread.spawn(move || {
                    drop(answer(&client, &ends));
                    drop(here);
                }));
            }
            // There are too many clients, so the connection is closed.
            Ok(_) => {}
            // An error such as too many open files persists for a while, so the loop pauses before it tries again.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// An answer: status, type and content.
type Answer = (&'static str, &'static str, Vec<u8>);

fn answer(client: &TcpStream, ends: &AtomicBool) -> std::io::Result<()> {
    let Some(request) = request(client)? else { return Ok(()) };
    let (status, kind, content) = answer_to(&request, ends);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    write_within(client, head.as_bytes(), REQUEST_TIMEOUT)?;
    write_within(client, &content, ANSWER_TIMEOUT)
}

/// Reads the first line and the headers of a request within [`REQUEST_TIMEOUT`]; otherwise a client that sends a byte now and
/// then could stay forever. Returns `None` if the client sends no complete request.
fn request(mut client: &TcpStream) -> std::io::Result<Option<String>> {
    let until = Instant::now() + REQUEST_TIMEOUT;
    let (mut request, mut bytes) = (Vec::new(), [0; 1024]);
    // The headers must be read, because closing a connection with unread data may lose the answer.
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() || request.len() > MAX_REQUEST {
            return Ok(None);
        }
        client.set_read_timeout(Some(remaining))?;
        match client.read(&mut bytes)? {
            0 => return Ok(None),
            count => request.extend_from_slice(&bytes[..count]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&request).into_owned()))
}

/// Writes all bytes within a time.
fn write_within(mut client: &TcpStream, mut bytes: &[u8], time: Duration) -> std::io::Result<()> {
    let until = Instant::now() + time;
    while !bytes.is_empty() {
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        client.set_write_timeout(Some(remaining))?;
        match client.write(bytes)? {
            0 => return Err(std::io::ErrorKind::WriteZero.into()),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

/// Returns `true` if the request names this host. A web page that makes its own domain point to this host's address
/// sends another name, so it is rejected.
fn is_for_this_host(request: &str) -> bool {
    let host = request.lines().skip(1).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then_some(value.trim())
    });
    host.is_none_or(|host| {
        let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
        ["localhost", "127.0.0.1", "[::1]"].iter().any(|own| own.eq_ignore_ascii_case(name))
    })
}

fn answer_to(request: &str, ends: &AtomicBool) -> Answer {
    let line = request.lines().next().unwrap_or_default();
    // Rejects other hosts, because a web page could otherwise let a browser record profiles.
    if !is_for_this_host(request) {
        return text_answer("403 Forbidden", "the Host of a request must be localhost".to_owned());
    }
    let mut words = line.split_whitespace();
    let (Some("GET"), Some(target)) = (words.next(), words.next()) else {
        return text_answer("400 Bad Request", format!("expected a GET request, got {line:?}"));
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let requested_ms = query.split('&').find_map(|pair| pair.strip_prefix("ms="));
    let ms = requested_ms.map_or(Ok(1000), str::parse::<u64>);
    let Some(ms) = ms.ok().filter(|ms| (1..=MAX_PROFILE_MS).contains(ms)) else {
        return text_answer(
            "400 Bad Request",
            format!("ms must be a whole number from 1 to {MAX_PROFILE_MS}, got {query:?}"),
        );
    };
    let encoded = match path {
        "/memory" => device_memory_profile().map(|profile| ("application/octet-stream", profile)),
        "/trace" => record(ms, ends).map(|profile| ("application/gzip", profile.trace)),
        "/xplane" => record(ms, ends).map(|profile| ("application/octet-stream", profile.xplane)),
        _ => {
            return text_answer(
                "404 Not Found",
                "shardax answers /trace?ms=500, /xplane?ms=500 and /memory".to_owned(),
            );
        }
    };
    match encoded {
        Ok((kind, content)) => ("200 OK", kind, content),
        Err(error) => text_answer("409 Conflict", error.to_string()),
    }
}

fn text_answer(status: &'static str, text: String) -> Answer {
    (status, "text/plain; charset=utf-8", format!("{text}\n").into_bytes())
}

/// Records a profile of this process for `ms` milliseconds.
fn record(ms: u64, ends: &AtomicBool) -> Result<timeline::Encoded> {
    let profile = timeline::trace("")?;
    let until = Instant::now() + Duration::from_millis(ms);
    while !ends.load(Ordering::Acquire) {
        let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
    profile.encode()?.ok_or_else(|| {
        err!(Runtime, "the profile was ended by another thread")
            .help("record one profile at a time: end it either in the program or through the server")
    })
}
