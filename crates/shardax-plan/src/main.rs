//! `shardax-plan NAME --target v5p:8x8x16 --mesh fsdp=128,model=8`: plans one of the built-in steps.

use std::process::ExitCode;

use shardax_plan::models;

fn main() -> ExitCode {
    let name = std::env::args_os().nth(1).map(|name| name.to_string_lossy().into_owned());
    let name = name.filter(|name| !name.starts_with('-'));
    let Some(name) = name else {
        eprintln!("name the step to plan: {}", models::NAMES.join(", "));
        return shardax_plan::run(&|setup| models::named("", setup));
    };
    shardax_plan::run(&move |setup| models::named(&name, setup))
}
