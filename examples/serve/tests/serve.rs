//! The serving example: its server with a controllable model, and the whole program.

#[path = "../server.rs"]
mod server;

#[path = "../../tests/running/mod.rs"]
mod running;

use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use running::example;
use server::{Batched, Limits, Rejection, Server};
use shardax::{Error, ErrorKind};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Doubles rows of two features when it gets a permit; fails for batches with a negative number.
#[derive(Clone)]
struct Double {
    batches: Arc<Mutex<Vec<usize>>>,
    let_go: Arc<Semaphore>,
}

impl Double {
    fn new(permits: usize) -> Self {
        Double { batches: Arc::default(), let_go: Arc::new(Semaphore::new(permits)) }
    }
}

impl Batched for Double {
    fn largest(&self) -> usize {
        4
    }

    fn check(&self, row: &[f32]) -> Result<(), String> {
        if row.len() == 2 { Ok(()) } else { Err(format!("{} features", row.len())) }
    }

    async fn run(&self, rows: &[Vec<f32>]) -> shardax::Result<Vec<Vec<f32>>> {
        self.let_go.acquire().await.expect("open").forget();
        self.batches.lock().unwrap().push(rows.len());
        if rows.iter().flatten().any(|x| *x < 0.0) {
            return Err(Error::new(ErrorKind::Value, "a negative number"));
        }
        Ok(rows.iter().map(|row| row.iter().map(|x| x * 2.0).collect()).collect())
    }
}

const ENOUGH_STEPS: usize = 1000;

/// Runs a test with a timeout.
fn block_on(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime");
    runtime.block_on(async { timeout(Duration::from_secs(60), test).await.expect("in time") });
}

fn limits(wait: Duration, queue: usize) -> Limits {
    Limits { wait, queue }
}

/// Waiting requests are answered in one batch, up to the largest size; each gets its own answer.
#[test]
fn requests_are_batched() {
    block_on(async {
        let model = Double::new(0);
        let server = Server::start(model.clone(), limits(Duration::from_secs(30), 64));
        let requests: Vec<_> = (0..8)
            .map(|i| {
                let client = server.client();
                tokio::spawn(async move { client.call(vec![i as f32, 1.0]).await })
            })
            .collect();
        model.let_go.add_permits(ENOUGH_STEPS);
        for (i, one) in requests.into_iter().enumerate() {
            assert_eq!(one.await.expect("a task"), Ok(vec![2.0 * i as f32, 2.0]));
        }
        assert_eq!(*model.batches.lock().unwrap(), [4, 4]);
        assert_eq!((server.counts().rows.load(Relaxed), server.counts().batches.load(Relaxed)), (8, 2));
        server.stop().await;
    });
}

/// An incomplete batch runs when its first request has waited long enough.
#[test]
fn incomplete_batches_run_at_the_deadline() {
    block_on(async {
        let server = Server::start(Double::new(ENOUGH_STEPS), limits(Duration::from_millis(50), 64));
        let start = Instant::now();
        assert_eq!(server.client().call(vec![1.0, 2.0]).await, Ok(vec![2.0, 4.0]));
        assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());
        server.stop().await;
    });
}

/// Only requests that are invalid, fail in the model, or were dropped by their clients get no answer.
#[test]
fn a_failing_request_does_not_affect_others() {
    block_on(async {
        let model = Double::new(0);
        let server = Server::start(model.clone(), limits(Duration::from_millis(300), 64));
        let rows = [vec![1.0, 1.0], vec![1.0], vec![-1.0, 0.0], vec![2.0, 2.0], vec![3.0, 3.0]];
        let gone = tokio::spawn({
            let client = server.client();
            async move { client.call(vec![9.0, 9.0]).await }
        });
        sleep(Duration::from_millis(20)).await;
        gone.abort();
        let requests: Vec<_> = rows
            .into_iter()
            .map(|row| {
                let client = server.client();
                tokio::spawn(async move { client.call(row).await })
            })
            .collect();
        model.let_go.add_permits(ENOUGH_STEPS);
        let mut answers = Vec::new();
        for one in requests {
            answers.push(one.await.expect("a task"));
        }
        let [one, short, negative, two, three] = answers.try_into().expect("five answers");
        assert_eq!([one, two, three], [2.0, 4.0, 6.0].map(|x| Ok(vec![x, x])));
        assert_eq!(short, Err(Rejection::Wrong("1 features".to_owned())));
        assert!(
            matches!(&negative, Err(Rejection::Failed(what)) if what.contains("a negative number")),
            "{negative:?}"
        );
        server.stop().await;
    });
}

/// A full queue makes clients wait; `try_call` fails immediately.
#[test]
fn a_full_queue_makes_clients_wait() {
    block_on(async {
        let model = Double::new(0);
        let server = Server::start(model.clone(), limits(Duration::ZERO, 2));
        let ask = |x: f32| {
            let client = server.client();
            tokio::spawn(async move { client.call(vec![x, x]).await })
        };
        // One is running, and two are waiting.
        let first_answer = ask(1.0);
        while server.counts().batches.load(Relaxed) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let waiting = [ask(2.0), ask(3.0)];
        let busy = loop {
            match timeout(Duration::from_millis(20), server.client().try_call(vec![4.0, 4.0])).await {
                Ok(answer) => break answer,
                // It was queued because earlier requests have not arrived yet.
                Err(_) => sleep(Duration::from_millis(1)).await,
            }
        };
        assert_eq!(busy, Err(Rejection::Busy));
        let patient = ask(5.0);
        model.let_go.add_permits(ENOUGH_STEPS);
        for (one, want) in [first_answer].into_iter().chain(waiting).chain([patient]).zip([2.0, 4.0, 6.0, 10.0]) {
            assert_eq!(one.await.expect("a task"), Ok(vec![want, want]));
        }
        server.stop().await;
    });
}

/// Requests before the stop are answered; later ones are rejected.
#[test]
fn stopping_answers_queued_requests() {
    block_on(async {
        let model = Double::new(0);
        let server = Server::start(model.clone(), limits(Duration::ZERO, 64));
        let client = server.client();
        let requests: Vec<_> = (0..6)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.call(vec![1.0, 1.0]).await })
            })
            .collect();
        sleep(Duration::from_millis(50)).await;
        model.let_go.add_permits(ENOUGH_STEPS);
        server.stop().await;
        for one in requests {
            assert_eq!(one.await.expect("a task"), Ok(vec![2.0, 2.0]));
        }
        assert_eq!(client.call(vec![1.0, 1.0]).await, Err(Rejection::Stopped));
        assert_eq!(client.try_call(vec![1.0, 1.0]).await, Err(Rejection::Stopped));
    });
}

/// The output of the program, which is killed if it takes too long.
fn output(args: &[&str]) -> String {
    let mut command = Command::new(example("serve"));
    let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let start = Instant::now();
    while child.try_wait().expect("its state").is_none() {
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().expect("it is ended");
            panic!("it takes too long");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let out = child.wait_with_output().expect("its output");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    text
}

/// The whole program with a model that it writes: the second start compiles nothing.
#[test]
fn serve() {
    let folder = std::env::temp_dir().join(format!("shardax-serve-{}", std::process::id()));
    let model = folder.display().to_string();
    let args = ["--model", &model, "--hidden", "32", "--sizes", "1,4", "--clients", "1,6", "--requests", "120"];
    for found in ["2 compiled, 0 found", "0 compiled, 2 found"] {
        let text = output(&args);
        assert!(text.contains(found) && text.contains("batches of [1, 4]"), "{text}");
        assert!(text.contains("it has 785 features, and the model takes 784"), "{text}");
        assert!(text.contains("stopped, and after that: the server was stopped"), "{text}");
        let rows: Vec<Vec<f64>> = text
            .lines()
            .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<f64>>())
            .filter(|row| row.len() == 6)
            .collect();
        assert_eq!(rows.iter().map(|row| (row[0], row[1])).collect::<Vec<_>>(), [(1.0, 120.0), (6.0, 120.0)], "{text}");
        assert!(rows.iter().all(|row| row[2] > 0.0 && row[3] >= row[2] && row[4] > 0.0), "{text}");
        assert!(rows[0][5] == 1.0 && rows[1][5] > 1.0, "{text}");
    }
    // A damaged executable is compiled again.
    std::fs::write(folder.join("4.executable"), "damaged").expect("it is ours");
    assert!(output(&args).contains("1 compiled, 1 found"));
    std::fs::remove_dir_all(folder).expect("it is ours");
}
