//! `shardax-run -n 4 --restarts 3 -- program args`: runs a program in several processes, and restarts it after failures.

use std::process::ExitCode;

use clap::Parser;
use shardax_cli::run::{Options, supervise};

fn main() -> ExitCode {
    match supervise(&Options::parse()) {
        Ok(status) => ExitCode::from(status),
        Err(why) => {
            eprintln!("shardax-run: {why}");
            ExitCode::from(2)
        }
    }
}
