//! The search for an MPI library: the one that the user named, the launcher's own, or one that the system has.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::abi::Table;
use crate::error::{Error, Kind, Result};
use crate::launch::{Family, Launcher};

/// Library names that the system's loader knows, with the MPI that they belong to; `None` if that varies.
const NAMES: &[(&str, Option<Family>)] = &[
    ("libmpi_abi.so.1", None),
    ("libmpi_abi.so.0", None),
    ("libmpi.so.40", Some(Family::OpenMpi)),
    ("libmpi.so.12", Some(Family::Mpich)),
    ("libmpich.so.12", Some(Family::Mpich)),
];

/// The environment variable with the path of a library.
const VARIABLE: &str = "SHARDAX_MPI_LIBRARY";

/// The folders to search for libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// The only library to try, if given.
    pub named: Option<PathBuf>,
    /// Folders to search first.
    pub folders: Vec<PathBuf>,
    /// The MPI whose libraries are preferred.
    pub family: Option<Family>,
}

impl Search {
    /// The search of this process: `SHARDAX_MPI_LIBRARY`, then next to the launcher's program, then by name.
    pub fn from_environment(launcher: Option<&Launcher>) -> Search {
        Search {
            named: std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from),
            folders: launcher_program().map(|program| folders_beside(&program)).unwrap_or_default(),
            family: launcher.and_then(|launcher| launcher.family),
        }
    }

    /// The candidates in order of preference.
    fn candidates(&self) -> Vec<PathBuf> {
        if let Some(named) = &self.named {
            return vec![named.clone()];
        }
        // A library of another MPI than the launcher's comes last, because it would start a world of one process in
        // each process.
        let (matching, other): (Vec<_>, Vec<_>) =
            NAMES.iter().partition(|(_, family)| family.is_none() || self.family.is_none() || *family == self.family);
        let names: Vec<&str> = matching.into_iter().chain(other).map(|(name, _)| name).collect();
        let adjacent = self.folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
        adjacent.filter(|path| path.exists()).chain(names.iter().map(PathBuf::from)).collect()
    }

    /// Loads the first usable library.
    pub(crate) fn load(&self) -> Result<Table> {
        let mut tried = String::new();
        for path in self.candidates() {
            match open(&path) {
                Ok(table) => return Ok(table),
                Err(reason) => {
                    let _ = write!(tried, "\n  {}: {reason}", path.display());
                }
            }
        }
        let folders = match (&self.named, self.folders.is_empty()) {
            (Some(_), _) => format!("{VARIABLE} names a library that cannot be used:"),
            (None, true) => "searched by name:".to_owned(),
            (None, false) => {
                let list: Vec<String> = self.folders.iter().map(|f| f.display().to_string()).collect();
                format!("searched next to the launcher in {}, and by name:", list.join(", "))
            }
        };
        Err(Error::new(
            Kind::NoLibrary,
            format!(
                "no MPI library was found; {folders}{tried}\n`apt-get install openmpi-bin`, or `pip install mpich`, or \
                 set {VARIABLE} to the path of the library that belongs to your launcher"
            ),
        ))
    }
}

fn open(path: &Path) -> std::result::Result<Table, String> {
    // A path names a file; the loader searches for a bare name.
    if path.to_string_lossy().contains('/') {
        check_file(path)?;
    }
    // SAFETY: this runs the initializers of an MPI library, as in a program that is linked with it. The symbols are
    // global, because Open MPI's plugins look them up.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| error.to_string())?;
    Table::read(library, path)
}

/// Checks for a regular file: the loader's message for a text file would only be "file too short".
fn check_file(path: &Path) -> std::result::Result<(), String> {
    let metadata = path.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file".into());
    }
    Ok(())
}

/// The program of the launcher that started this process, directly or through a shell or debugger.
fn launcher_program() -> Option<PathBuf> {
    const KNOWN: &[&str] = &["mpi", "orte", "prte", "hydra", "orted"];
    let mut process = parent_of("self")?;
    for _ in 0..8 {
        let program = std::fs::read_link(format!("/proc/{process}/exe")).ok()?;
        let name = program.file_name()?.to_string_lossy().into_owned();
        if KNOWN.iter().any(|known| name.contains(known)) {
            return Some(program);
        }
        process = parent_of(&process)?;
    }
    None
}

/// The parent process.
pub(crate) fn parent_of(process: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().to_owned();
    (parent != "0").then_some(parent)
}

/// The library folders of an installation with this program in `bin`.
fn folders_beside(program: &Path) -> Vec<PathBuf> {
    let Some(root) = program.parent().and_then(Path::parent) else { return Vec::new() };
    let multiarch = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    [multiarch.as_str(), "lib", "lib64"].iter().map(|lib| root.join(lib)).filter(|folder| folder.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_library_is_the_only_candidate() {
        let search = Search { named: Some("/nowhere/libmpi.so".into()), ..Default::default() };
        let error = search.load().err().expect("the library does not exist");
        assert_eq!(error.kind, Kind::NoLibrary);
        let lines: Vec<&str> = error.message.lines().collect();
        assert_eq!(
            lines[..2],
            [
                "no MPI library was found; SHARDAX_MPI_LIBRARY names a library that cannot be used:",
                "  /nowhere/libmpi.so: No such file or directory (os error 2)",
            ]
        );
        assert_eq!(
            lines[2],
            "`apt-get install openmpi-bin`, or `pip install mpich`, or set SHARDAX_MPI_LIBRARY to the path of the \
             library that belongs to your launcher"
        );
    }

    #[test]
    fn a_library_that_is_not_mpi_is_rejected() {
        let search = Search { named: Some("libc.so.6".into()), ..Default::default() };
        let error = search.load().err().expect("it is not an MPI library");
        assert!(error.message.contains("libc.so.6: it has no function MPI_"), "{error}");
        let search = Search { named: Some("/".into()), ..Default::default() };
        let error = search.load().err().expect("it is a folder");
        assert!(error.message.contains("it is not a file"), "{error}");
    }

    fn names(family: Family) -> Vec<String> {
        let search = Search { family: Some(family), ..Default::default() };
        search.candidates().iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn libraries_of_the_launchers_mpi_come_first() {
        assert_eq!(
            names(Family::OpenMpi),
            ["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.40", "libmpi.so.12", "libmpich.so.12"]
        );
        assert_eq!(
            names(Family::Mpich),
            ["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpich.so.12", "libmpi.so.40"]
        );
    }
}
