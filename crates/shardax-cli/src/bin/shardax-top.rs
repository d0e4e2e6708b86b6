//! The command `shardax-top FOLDER`, which shows a training run in the terminal.

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
