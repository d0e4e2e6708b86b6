//! A process that ends while programs run that nobody waits for.

mod common;
use std::process::{Command, exit};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::*;
use shardax_pjrt::*;

const SIZE: usize = 1024;
const CHILD: &str = "SHARDAX_TEST_EXIT_DEVICES";

/// x · x … · x, which takes a while.
fn powers() -> String {
    let ty = format!("tensor<{SIZE}x{SIZE}xf32>");
    let steps: String = (0..12)
        .map(|i| {
            format!(
                "%x{} = stablehlo.dot_general %x{i}, %x0, contracting_dims = [1] x [0] : ({ty}, {ty}) -> {ty}\n",
                i + 1
            )
        })
        .collect();
    format!("func.func @main(%x0: {ty}) -> {ty} {{\n{steps}return %x12 : {ty}\n}}")
}

/// What the child does: starts a program on each device, and ends.
fn start_and_end(devices: usize) -> ! {
    let client = new_client(devices);
    let options = CompileOptions { portable: true, ..Default::default() };
    let dims = [SIZE as i64; 2];
    let exe = client.compile(&powers(), &options, signature([f32s(&dims)])).unwrap();
    for device in client.devices() {
        let x = client.buffer_from_host(&bytes(&vec![1e-3; SIZE * SIZE]), ElementType::F32, &dims, device).unwrap();
        exe.execute_on(&[&x], device).unwrap();
    }
    // A thread that goes on launching, while the process ends, gets errors.
    let device = client.devices()[0].clone();
    let x = client.buffer_from_host(&bytes(&vec![1e-3; SIZE * SIZE]), ElementType::F32, &dims, &device).unwrap();
    std::thread::spawn(move || {
        while exe.execute_on(&[&x], &device).is_ok() {
            sleep(Duration::from_millis(300));
        }
    });
    sleep(Duration::from_millis(5));
    exit(7)
}

#[test]
fn a_process_that_ends_waits_for_what_it_started() {
    if let Ok(devices) = std::env::var(CHILD) {
        start_and_end(devices.parse().unwrap());
    }
    let this = std::env::current_exe().unwrap();
    for devices in ["1", "4"] {
        for _ in 0..2 {
            let mut child = Command::new(&this)
                .args(["--exact", "a_process_that_ends_waits_for_what_it_started", "--nocapture"])
                .env(CHILD, devices)
                .spawn()
                .unwrap();
            let start = Instant::now();
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                if start.elapsed() > Duration::from_secs(120) {
                    child.kill().unwrap();
                    panic!("the process on {devices} device(s) does not end");
                }
                sleep(Duration::from_millis(10));
            };
            assert_eq!(status.code(), Some(7), "on {devices} device(s): {status}");
        }
    }
}
