//! The page of metrics of a run has the run's numbers.

#[path = "../../tests/running/mod.rs"]
mod running;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use running::{example, numbers};

/// The answer to a request for this path.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[test]
fn prometheus_reads_the_numbers_of_a_run() {
    let mut run = Command::new(example("telemetry"));
    run.args(["--address", "127.0.0.1:0", "--steps", "300"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = run.spawn().expect("the example starts");
    let mut lines = BufReader::new(run.stdout.take().expect("its output")).lines().map(|line| line.expect("a line"));
    let address_line = lines.next().expect("the page's address");
    let address = address_line.strip_prefix("metrics at http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{address_line}"));
    let result = lines.next().expect("the run's result");
    assert_eq!(result, "slope 3.000, shift 1.000");
    let page = get(address, "/metrics");
    assert!(page.starts_with("HTTP/1.") && page.contains("200 OK"), "{page}");
    assert!(page.contains("text/plain; version=0.0.4"), "{page}");
    assert!(page.contains("# TYPE train_loss gauge\n"), "{page}");
    let value = |name: &str| match numbers(&page, &format!("\n{name} "))[..] {
        [x] => x,
        _ => panic!("{name} is not once in {page}"),
    };
    assert_eq!((value("train_step"), value("train_time_remaining_seconds")), (300.0, 0.0));
    assert!((0.0..1e-3).contains(&value("train_loss")) && value("train_steps_per_second") > 0.0, "{page}");
    assert!((0.0..=1.0).contains(&value("train_time_input_wait")), "{page}");
    assert!(get(address, "/").contains("404"));
    drop(run.stdin.take());
    assert!(run.wait().expect("it ends").success());
}
