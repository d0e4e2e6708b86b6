//! Faults of the plugin's partitioner (xla-cpu-pjrt 0.0.1) with `unreduced` shardings, which `shardax` therefore writes
//! in other ways (`Reshard::lower_unreduced`). A plugin that does better fails these tests: then that is no longer
//! needed.

mod common;

use std::process::{Command, Stdio};

use common::*;
use shardax_pjrt::*;

/// A program over the mesh x:2, y:4 that reshards its argument.
fn resharding(from: &str, to: &str) -> String {
    format!(
        "module attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{
        sdy.mesh @mesh = <[\"x\"=2, \"y\"=4]>
        func.func @main(%x: tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {from}>}})
            -> (tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {to}>}}) {{
          %y = sdy.sharding_constraint %x <@mesh, {to}> : tensor<8xf32>
          return %y : tensor<8xf32>
        }}
        }}"
    )
}

/// The sum of what the devices hold afterwards, of 0..8 of which each device has these elements.
fn sum(from: &str, to: &str, part: impl Fn(usize) -> Vec<f32>) -> Vec<f32> {
    let client = client(8);
    let parts: Vec<Buffer> = (0..8).map(|d| put(&client, d, &part(d))).collect();
    let spec = f32s(&[part(0).len() as i64]);
    let exe = client.compile(&resharding(from, to), &partitions(8), signature([spec])).unwrap();
    let results = exe.execute(&parts.iter().collect::<Vec<_>>()).unwrap();
    let mut sum = vec![0.0; 8];
    results.iter().for_each(|outs| get(&outs[0]).iter().zip(&mut sum).for_each(|(v, sum)| *sum += v));
    sum
}

fn counted(by: f32) -> Vec<f32> {
    (0..8).map(|i| i as f32 * by).collect()
}

/// A value that all devices have becomes an addend on each: along x the sum is twice the value, and 4 devices have it.
#[test]
fn a_replicated_value_is_added_once_for_each_device() {
    let sums = sum("[{}]", "[{}], unreduced={\"x\"}", |_| counted(1.0));
    assert_ne!(sums, counted(4.0), "the partitioner spreads a replicated value: `Reshard` can leave it to it");
    assert_eq!(sums, counted(8.0));
}

/// The values of one dimension over two axes of unequal sizes become addends over both.
#[test]
fn values_over_two_axes_become_wrong_addends() {
    let right = counted(1.0);
    let sums = sum("[{\"x\", \"y\"}]", "[{}], unreduced={\"x\", \"y\"}", |d| vec![d as f32]);
    assert_ne!(sums, right, "the partitioner spreads values over two axes: `Reshard` can leave it to it");
}

/// Compiled in a process of its own, which ends.
#[test]
#[ignore = "ends the process: run by `exchanging_axes_ends_the_process`"]
fn exchanging_axes() {
    sum("[{}], unreduced={\"x\"}", "[{}], unreduced={\"y\"}", |_| counted(1.0));
    println!("it works");
}

#[test]
fn exchanging_axes_ends_the_process() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "exchanging_axes", "--ignored", "--nocapture", "-q"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("it works"), "the partitioner exchanges addends of axes: `Reshard` can leave it to it");
    assert!(!output.status.success());
    assert!(text.contains("axes that does not appear in the other"), "{text}");
}
