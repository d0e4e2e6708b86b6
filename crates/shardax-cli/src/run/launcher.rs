//! The commands that start processes.

use std::path::PathBuf;
use std::process::Command;

use super::Options;

/// The command that starts the processes of an attempt.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// Chooses one of the others by the number of processes and the installed programs.
    Auto,
    /// `mpirun` of Open MPI or MPICH.
    Mpirun,
    /// `srun` of Slurm.
    Srun,
    /// Starts the program directly, as one process.
    None,
}

impl Launcher {
    fn chosen(self, processes: usize) -> Launcher {
        let in_slurm = std::env::var_os("SLURM_JOB_ID").is_some();
        match self {
            Launcher::Auto if processes == 1 => Launcher::None,
            Launcher::Auto if in_slurm && find_program("srun").is_some() => Launcher::Srun,
            Launcher::Auto => Launcher::Mpirun,
            chosen => chosen,
        }
    }

    /// The command of an attempt.
    pub(super) fn command(self, options: &Options, processes: usize) -> Result<Command, String> {
        let (program, arguments) = options.program.split_first().ok_or("write the program to run after `--`")?;
        let count = processes.to_string();
        match self.chosen(processes) {
            Launcher::Srun => launch("srun", &["-n", &count, "--cpu-bind=none", "--kill-on-bad-exit=1"], options),
            Launcher::None if processes > 1 => Err(format!("--launcher=none starts one process, not {processes}")),
            Launcher::None => {
                let mut command = Command::new(program);
                command.args(arguments);
                Ok(command)
            }
            Launcher::Mpirun | Launcher::Auto => {
                let mut mpirun_options = vec!["-n", &count, "--bind-to", "none"];
                let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
                // Only Open MPI counts cores, and only if no hosts are named.
                if options.launcher_arg.is_empty() && processes > cores && is_open_mpi() {
                    mpirun_options.push("--oversubscribe");
                }
                launch("mpirun", &mpirun_options, options)
            }
        }
    }
}

/// The command that starts the user's program with a launcher.
fn launch(launcher: &str, launcher_options: &[&str], options: &Options) -> Result<Command, String> {
    let path = find_program(launcher).ok_or_else(|| {
        format!("`{launcher}` is not in PATH: install it (`apt-get install openmpi-bin`), or choose another --launcher")
    })?;
    let mut command = Command::new(path);
    command.args(launcher_options).args(&options.launcher_arg).args(&options.program);
    Ok(command)
}

/// The path of a program in PATH.
fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn is_open_mpi() -> bool {
    let version = Command::new("mpirun").arg("--version").output();
    version.is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains("Open MPI"))
}
