//! Files that are not files, sizes beyond memory, and bombs: errors in time, and nothing lost on the way.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use flate2::write::GzEncoder;
use shardax::prelude::*;
use shardax_train::checkpoint::Checkpoint;
use shardax_train::data::*;
use shardax_train::log::JsonLines;

use super::data::{goes_on, member};
use super::{Folder, fails};

/// Returns the value of `f`, which must not take longer than the limit.
#[track_caller]
fn within<T: Send + 'static>(time: Duration, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = channel();
    std::thread::spawn(move || drop(send.send(f())));
    receive.recv_timeout(time).expect("it ends in time, and does not panic")
}

const SOON: Duration = Duration::from_secs(20);

type Reader = fn(&Path) -> Result<()>;

/// Every reader of files by their paths.
fn readers() -> Vec<(&'static str, Reader)> {
    // Features add to it.
    #[allow(unused_mut)]
    let mut readers: Vec<(&str, Reader)> = vec![
        ("idx", |path| idx(path).map(drop)),
        ("cifar10", |path| cifar10([path]).map(drop)),
        ("npy", |path| npy(path).map(drop)),
        ("npz", |path| npz(path).map(drop)),
        ("csv", |path| csv(path).map(drop)),
        ("text_windows", |path| text_windows(path, 4).map(drop)),
        ("tar", |path| WebDataset::new([path]).next_item().map_or(Ok(()), |item| item.map(drop))),
        ("log", |path| JsonLines::read(path).map(drop)),
    ];
    #[cfg(feature = "parquet")]
    readers.push(("parquet", |path| parquet([path]).map(drop)));
    #[cfg(feature = "image")]
    readers.push(("images", |path| {
        let folder = path.parent().and_then(Path::parent).expect("a folder");
        image_folder(folder).and_then(|images| images.get(0)).map(drop)
    }));
    #[cfg(feature = "tokenizers")]
    readers.push(("tokenizer", |path| Tokenizer::from_file(path).map(drop)));
    readers
}

fn fifo(path: &Path) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
}

#[test]
fn readers_reject_pipes_and_folders() {
    let folder = Folder::new();
    let pipe = folder.join("class/1.png");
    fifo(&pipe);
    let dir = folder.join("class/2.png");
    std::fs::create_dir(&dir).expect("a folder");
    for (name, read) in readers() {
        let path = pipe.clone();
        let read_pipe = within(SOON, move || read(&path));
        fails(read_pipe, &["cannot read", "1.png", "a FIFO, a socket or a device"]);
        if name != "images" {
            fails(read(&dir), &["cannot read", "2.png", "it is a folder"]);
            fails(read(Path::new("/dev/zero")), &["cannot read", "/dev/zero", "a device"]);
        }
    }
    for name in ["manifest.json", "commit"] {
        let checkpoint = folder.join(name);
        fifo(&checkpoint.join(name));
        if name == "commit" {
            std::fs::write(checkpoint.join("manifest.json"), "{}").expect("a file");
        }
        fails(within(SOON, move || Checkpoint::open(checkpoint)), &["cannot read", name, "a FIFO"]);
    }
}

fn sparse(folder: &Folder, name: &str, start: &[u8]) -> PathBuf {
    let path = folder.write(name, start);
    std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(8 << 40)).expect("a sparse file");
    path
}

#[test]
fn files_beyond_memory_are_errors() {
    let folder = Folder::new();
    // An array, and a member, that say what the file has.
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (8796093022080,), }";
    let npy_file =
        sparse(&folder, "x.npy", &[&b"\x93NUMPY\x01\x00\x76\x00"[..], format!("{header:<118}").as_bytes()].concat());
    fails(within(SOON, move || npy(npy_file)), &["x.npy", "do not fit in memory"]);
    let idx_file = sparse(&folder, "x.idx", &[&[0, 0, 8, 2][..], &[0, 0, 255, 255], &[7, 0, 0, 0]].concat());
    fails(within(SOON, move || idx(idx_file)), &["x.idx", "do not fit in memory"]);
    let mut large = member("1.txt", b"");
    large[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 7, 0xff, 0, 0, 0, 0]);
    let tar = sparse(&folder, "x.tar", &summed(large));
    fails(
        within(SOON, move || WebDataset::new([tar]).next_item().expect("an error")),
        &["x.tar", "do not fit in memory"],
    );
    for (name, read) in readers() {
        if ["text_windows", "tar", "images"].contains(&name) {
            continue;
        }
        let path = sparse(&folder, "zeros", &[]);
        assert!(within(SOON, move || read(&path)).is_err(), "{name}");
    }
}

/// A header with the checksum that it should have.
fn summed(mut header: Vec<u8>) -> Vec<u8> {
    header[148..156].fill(b' ');
    let sum: u32 = header[..512].iter().map(|b| u32::from(*b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[test]
fn bombs_are_errors_in_time() -> Result<()> {
    let folder = Folder::new();
    let zeros = vec![b'0'; 16 << 20];
    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packed = GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(bytes).expect("in memory");
        packed.finish().expect("in memory")
    }
    // Nothing for long, after what begins well: members of a gzip file are one after the other.
    let nothing = packed(&zeros);
    fn bomb(name: &str, start: &[u8], folder: &Folder, nothing: &[u8]) -> PathBuf {
        folder.write(name, [packed(start), nothing.repeat(64)].concat())
    }
    let (table, numbers) = (
        bomb("a.csv.gz", b"a,b\n1,2\n", &folder, &nothing),
        bomb("a.idx.gz", &[0, 0, 8, 1, 0, 0, 0, 2, 7, 8], &folder, &nothing),
    );
    fails(within(SOON, move || csv(table)), &["a.csv.gz line 3", "longer than 16 MiB"]);
    fails(within(SOON, move || idx(numbers)), &["a.idx.gz is damaged", "at byte 10, bytes follow"]);
    let images = bomb("images.idx.gz", &[0, 0, 8, 1, 0x40, 0, 0, 0], &folder, &nothing);
    fails(within(3 * SOON, move || idx(images)), &["unpack to more than", "gzip -d"]);

    // An entry of many bytes whose header says one number.
    let path = folder.join("a.npz");
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&path).expect("a file"));
    let deflated = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    zip.start_file("x.npy", deflated).expect("an entry");
    let header = format!("{:<118}", "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }");
    zip.write_all(&[&b"\x93NUMPY\x01\x00\x76\x00"[..], header.as_bytes()].concat()).expect("an entry");
    zip.write_all(&zeros).expect("an entry");
    zip.finish().expect("a zip file");
    fails(
        within(SOON, move || npz(path)),
        &["a.npz is damaged", "1 bytes of numbers should follow, but 16777216 do", "x.npy"],
    );
    Ok(())
}

fn numbers(len: usize) -> SourceStream<(usize, impl Fn(usize) -> Result<Example> + Clone + Send + 'static)> {
    fn number(i: usize) -> Result<Example> {
        Ok(Example::from([("x".to_owned(), HostArray::from_slice(&[i as i32], &[])?)]))
    }
    (len, number).stream()
}

#[test]
fn sizes_of_streams_beyond_memory_are_less_or_errors() -> Result<()> {
    // A size of a buffer is an upper bound, so it must not be allocated in advance.
    for ahead in [1 << 44, usize::MAX] {
        assert!(numbers(9).prefetch(ahead).next_item().expect("an item").is_ok());
        assert!(numbers(9).parallel_map(ahead, Ok).next_item().expect("an item").is_ok());
    }
    fn text(_: usize) -> Result<Example> {
        Ok(Example::from([("tokens".to_owned(), HostArray::from_slice(&[1, 2, 3], &[3])?)]))
    }
    for length in [1 << 40, usize::MAX] {
        fails(
            (3usize, text).stream().pack(length).next_item().expect("an error"),
            &[&format!("a row of {length} tokens"), "do not fit in memory", "smaller length"],
        );
        fails(
            numbers(3).epochs(1).batch_masked(length).next_item().expect("an error"),
            &[&format!("a batch of {length} examples"), "do not fit in memory"],
        );
    }
    #[cfg(feature = "image")]
    {
        let folder = Folder::new();
        let png = shardax_train::Picture::of(&zeros([2, 2]))?.to_png()?;
        folder.write("a/1.png", png);
        let images = image_folder(&folder.0)?;
        fails(images.resize(u32::MAX, u32::MAX).get(0), &["4294967295 × 4294967295 pixels", "fit in memory"]);
    }
    Ok(())
}

/// A size that exceeds the memory must be an error before anything is read, also of a stream without end.
#[test]
fn every_size_of_a_stream_may_be_the_largest_number() -> Result<()> {
    const MOST: usize = usize::MAX;
    fn first(stream: &mut dyn Stream<Item = Example>) -> Result<Example> {
        stream.next_item().expect("an item")
    }
    fn text(_: usize) -> Result<Example> {
        Ok(Example::from([("tokens".to_owned(), HostArray::from_slice(&[1, 2, 3], &[3])?)]))
    }
    let texts = move || (3usize, text).stream();
    let beyond_memory = within(SOON, move || {
        [1 << 44, MOST].map(|size| {
            [
                ("a shuffle buffer of", first(&mut numbers(9).shuffle(size, 0))),
                ("a batch of", first(&mut numbers(9).batch(size))),
                ("a batch of", first(&mut numbers(9).batch_masked(size))),
                ("a batch of", first(&mut numbers(9).epochs(1).batch_masked(size))),
                ("a row of", first(&mut texts().pack(size))),
                ("a row of", first(&mut texts().concat_then_split(size))),
                ("the order of", first(&mut numbers(size).shuffled(0))),
            ]
            .map(|(what, item)| fails(item, &[&format!("{what} {size} "), "do not fit in memory"]))
        })
    });
    assert_eq!(beyond_memory.as_flattened().len(), 14);
    within(SOON, move || {
        fails(first(&mut numbers(9).shard(MOST, MOST)), &["18446744073709551615 parts", "at most 1048576"]);
        fails(numbers(9).shuffle(MOST, 0).batch(2).prefetch(2).next_item().expect("an item"), &["a shuffle buffer"]);
    });
    // What takes no memory may be so large.
    fn number(item: Result<Example>) -> Result<Vec<i32>> {
        item?["x"].to_vec::<i32>()
    }
    assert_eq!(number(first(&mut numbers(MOST).shard(1, 2)))?, [1]);
    assert_eq!(number(first(&mut numbers(9).epochs(u64::MAX).repeat().prefetch(MOST)))?, [0]);
    assert_eq!(numbers(9).enumerate().parallel_map(MOST, Ok).next_item().expect("an item")?.0, 0);
    assert_eq!(number(first(&mut numbers(9).mix(1.0, vec![(numbers(9), 1.0)], u64::MAX)?))?, [0]);
    fails(token_windows(vec![1, 2, 3], MOST), &["too few for a window of 18446744073709551615"]);
    fails(text_windows(Folder::new().write("a.txt", "text"), MOST), &["too few for a window of 18446744073709551615"]);
    let image = HostArray::from_slice(&[7u8; 12], &[2, 2, 3])?;
    assert_eq!(Augment::new(0).random_crop(MOST).cutout(MOST).image(u64::MAX, &image)?.shape(), [2, 2, 3]);
    let digits = digits()?;
    fails(digits.batches(MOST).next().expect("an item"), &["do not fit in memory"]);
    fails(digits.batches(MOST).drop_last().next().expect("an item"), &["is larger than the data set"]);
    assert_eq!(digits.clone().split(MOST).1.len(), 0);
    fails(shardax_train::shard_batch(&zeros([4]), MOST), &["must be divisible by num_devices"]);
    assert!(shardax_train::accumulate(MOST, |x: Array| Ok(x), zeros([4])).is_err());
    Ok(())
}

/// Examples that are numbers. Some of them are errors.
fn with_errors(len: usize, wrong: &'static [usize]) -> impl Stream<Item = Example> {
    fn example(i: usize) -> Result<Example> {
        Ok(Example::from([("x".to_owned(), HostArray::from_slice(&[i as i32], &[])?)]))
    }
    let get = move |i: usize| {
        if wrong.contains(&i) {
            Err(shardax::Error::new(shardax::ErrorKind::Value, format!("example {i} is damaged")))
        } else {
            example(i)
        }
    };
    (len, get).stream().epochs(1)
}

#[test]
fn an_error_within_a_batch_loses_no_examples() -> Result<()> {
    let make = || with_errors(9, &[2, 5]).batch(3);
    fn read(stream: &mut dyn Stream<Item = Example>) -> String {
        match stream.next_item() {
            Some(Ok(batch)) => format!("{:?}", batch["x"].to_vec::<i32>().expect("numbers")),
            Some(Err(error)) => error.message().to_owned(),
            None => "end".to_owned(),
        }
    }
    let want = ["example 2 is damaged", "[0, 1, 3]", "example 5 is damaged", "[4, 6, 7]", "end"];
    let mut stream = make();
    for at in 0..want.len() {
        // From the position before it, too, and from a batch of batches.
        let mut again = make();
        again.seek(&stream.position())?;
        let remaining: Vec<String> = (at..want.len()).map(|_| read(&mut again)).collect();
        assert_eq!(remaining, want[at..]);
        assert_eq!(read(&mut stream), want[at]);
    }
    let nested = || with_errors(20, &[2, 9]).batch(2).batch(2);
    let mut stream = nested();
    let mut examples = Vec::new();
    let mut positions = vec![stream.position()];
    while let Some(item) = stream.next_item() {
        examples.push(item.map_err(|error| error.message().to_owned()));
        positions.push(stream.position());
    }
    assert_eq!(examples.len(), 6);
    for (at, position) in positions.iter().enumerate() {
        let mut again = nested();
        again.seek(position)?;
        let remaining: Vec<_> = again.items().map(|item| item.map_err(|error| error.message().to_owned())).collect();
        assert_eq!(remaining, examples[at..], "from {at}: {position}");
    }
    Ok(())
}

#[test]
fn an_error_between_texts_ends_a_row_and_loses_none() -> Result<()> {
    fn text(i: usize) -> Result<Example> {
        match i {
            2 => Err(shardax::Error::new(shardax::ErrorKind::Value, "text 2 is damaged")),
            i => Ok(Example::from([("tokens".to_owned(), HostArray::from_slice(&[i as i32 * 10, 1, 2], &[3])?)])),
        }
    }
    let make = || (4usize, text).stream().epochs(1).concat_then_split(5);
    fn read(row: Option<Result<Example>>) -> std::result::Result<Vec<i32>, String> {
        match row.expect("a row") {
            Ok(row) => Ok(row["tokens"].to_vec::<i32>().expect("tokens")),
            Err(error) => Err(error.message().to_owned()),
        }
    }
    // The row before the damaged text is padded, and the text after it starts a new row.
    let want = [Ok(vec![0, 1, 10, 1, 0]), Err("text 2 is damaged".to_owned()), Ok(vec![30, 1, 0, 0, 0])];
    let mut stream = make();
    for at in 0..want.len() {
        let mut again = make();
        again.seek(&stream.position())?;
        for want in &want[at..] {
            assert_eq!(read(again.next_item()), *want, "from {at}");
        }
        assert!(again.next_item().is_none());
        assert_eq!(read(stream.next_item()), want[at]);
    }
    Ok(())
}

#[test]
fn members_of_tar_files_are_read_or_named() -> Result<()> {
    let folder = Folder::new();
    fn fails_with(bytes: Vec<u8>, with: &[&str], folder: &Folder) {
        let mut stream = WebDataset::new([folder.write("x.tar", bytes)]);
        fails(stream.items().find(Result::is_err).expect("an error"), with);
    }
    let mut huge = member("1.txt", b"a");
    // 2⁶⁴ + 1.
    huge[124..136].copy_from_slice(&[0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    fails_with(summed(huge), &["x.tar is damaged", "\"1.txt\" has a size of more than 64 bits"], &folder);
    for (kind, what) in [(b'1', "is a link"), (b'2', "--dereference"), (b'6', "not a file: its type is '6'")] {
        let mut link = member("2.txt", b"");
        link[156] = kind;
        fails_with([member("1.txt", b"a"), summed(link)].concat(), &["at byte 1024", "\"2.txt\"", what], &folder);
    }
    fails_with([member("1.txt", b"a"), member("1.txt", b"b")].concat(), &["\"1.txt\" appears twice"], &folder);

    // As GNU tar writes them, where it is there: long names, sparse members, links.
    let tar = |arguments: &[&str]| {
        let done = Command::new("tar").current_dir(&folder.0).args(arguments).output();
        done.is_ok_and(|output| output.status.success())
    };
    let long = format!("{}/0001", "deep".repeat(40));
    folder.write(&format!("in/{long}.txt"), "long");
    let holes = folder.write("in/0002.bin", "a");
    std::fs::File::options().write(true).open(&holes).and_then(|file| file.set_len(3 << 20)).expect("a file");
    let mut want = vec![0; 3 << 20];
    want[0] = b'a';
    let files = [&format!("{long}.txt"), "0002.bin"];
    for format in ["gnu", "posix"] {
        let format = format!("--format={format}");
        if !tar(&["-cf", "s.tar", &format, "--sparse", "-C", "in", files[0], files[1]]) {
            eprintln!("no GNU tar here: skipped");
            return Ok(());
        }
        let mut stream = WebDataset::new([folder.join("s.tar")]);
        let example = stream.next_item().expect("an example")?;
        assert_eq!((&example["txt"][..], &example["__key__"][..]), (&b"long"[..], long.as_bytes()));
        match stream.next_item().expect("an example") {
            Ok(second) => assert!(format == "--format=gnu" && second["bin"] == want),
            error => fails(error, &["0002.bin", "sparse in the POSIX form", "--format=gnu"]),
        }
    }
    for i in 3..12 {
        folder.write(&format!("in/{i:04}.txt"), format!("{i}"));
    }
    assert!(tar(&["-cf", "s.tar", "--format=gnu", "--sparse", "--sort=name", "-C", "in", "."]));
    goes_on(|| WebDataset::new([folder.join("s.tar")]), 20);

    // A file that is shorter than the position in it.
    let mut stream = WebDataset::new([folder.join("s.tar")]);
    for _ in 0..6 {
        stream.next_item().expect("an example")?;
    }
    let position = stream.position();
    let short = folder.write("s.tar", member("1.txt", b"a"));
    let mut again = WebDataset::new([short]);
    again.seek(&position)?;
    fails(again.next_item().expect("an error"), &["s.tar", "the file ends at byte 1024", "it was longer before"]);
    Ok(())
}
