//! `shardax-doctor`: loads a plugin, runs checks on its devices, and writes a report.

use std::process::ExitCode;

use clap::Parser;
use shardax_cli::doctor::{Options, examine};

fn main() -> ExitCode {
    match examine(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("shardax-doctor: {why}");
            ExitCode::from(2)
        }
    }
}
