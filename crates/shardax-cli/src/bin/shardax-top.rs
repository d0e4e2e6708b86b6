//! `shardax-top FOLDER`: shows a run in the terminal.

use std::process::ExitCode;

use clap::Parser;
use shardax_cli::top::{Options, show};

fn main() -> ExitCode {
    match show(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("shardax-top: {why}");
            ExitCode::from(2)
        }
    }
}
