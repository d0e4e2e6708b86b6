//! Files of data, streams of examples, and positions that are found again.

use std::collections::BTreeSet;
use std::io::Write;

use serde_json::Value;
use shardax::prelude::*;
use shardax_train::data::*;

use super::{Folder, fails, setup};

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).expect("in memory");
    packed.finish().expect("in memory")
}

pub fn idx_bytes(kind: u8, shape: &[u32], numbers: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, kind, shape.len() as u8];
    bytes.extend(shape.iter().flat_map(|d| d.to_be_bytes()));
    bytes.extend_from_slice(numbers);
    bytes
}

#[test]
fn idx_files_packed_and_plain() -> Result<()> {
    let folder = Folder::new();
    let images: Vec<u8> = (0..24).collect();
    let bytes_of_file = idx_bytes(8, &[2, 3, 4], &images);
    let (plain, packed) = (folder.write("a", &bytes_of_file), folder.write("a.gz", gzip(&bytes_of_file)));
    assert_eq!(idx(&plain)?, HostArray::from_slice(&images, &[2, 3, 4])?);
    assert_eq!(idx(&packed)?, idx(&plain)?);
    let data = idx_images(&plain, folder.write("labels", idx_bytes(8, &[2], &[7, 9])))?;
    assert_eq!((data.len(), data.get(1)?["label"].to_vec::<u8>()?), (2, vec![9]));
    assert_eq!((data.get(1)?["image"].shape(), data.get(1)?["image"].bytes()[0]), (&[3, 4][..], 12));
    let shorts = [1i16, -2, 300].iter().flat_map(|x| x.to_be_bytes()).collect::<Vec<_>>();
    assert_eq!(idx(folder.write("shorts", idx_bytes(0x0b, &[3], &shorts)))?.to_vec::<i16>()?, [1, -2, 300]);

    // The errors of damaged files name the position and the missing data.
    fails(
        idx_images(&plain, folder.write("few", idx_bytes(8, &[1], &[7]))),
        &["the same number of rows", "label: uint8[1]"],
    );
    fails(
        idx(folder.write("cut", &bytes_of_file[..20])),
        &["cut is damaged", "at byte 16, 24 bytes of numbers should follow, but 4 do"],
    );
    fails(idx(folder.write("head", &bytes_of_file[..9])), &["at byte 8, 4 bytes of sizes"]);
    fails(idx(folder.write("long", [&bytes_of_file[..], &[0; 3]].concat())), &["at byte 40, bytes follow"]);
    fails(idx(folder.write("kind", idx_bytes(3, &[1], &[1]))), &["the header says 0x00000301"]);
    fails(idx(folder.write("huge", idx_bytes(0x0e, &[u32::MAX, u32::MAX, 9], &[]))), &["too large"]);
    let cut = gzip(&bytes_of_file);
    fails(
        idx(folder.write("cut.gz", &cut[..cut.len() - 9])),
        &["cut.gz is damaged", "at byte ", "it cannot be unpacked"],
    );
    fails(idx(folder.join("none")), &["cannot read", "none"]);
    Ok(())
}

#[test]
fn cifar_files() -> Result<()> {
    let folder = Folder::new();
    fn record(label: u8) -> Vec<u8> {
        [vec![label], (0..3072).map(|i| (i / 1024 * 100 + i % 50) as u8).collect()].concat()
    }
    let files = [folder.write("1.bin", [record(3), record(9)].concat()), folder.write("2.bin", record(0))];
    let data = cifar10(&files)?;
    assert_eq!(data.len(), 3);
    assert_eq!(data.fields()["label"].to_vec::<u8>()?, [3, 9, 0]);
    let image = data.get(2)?["image"].clone();
    assert_eq!((image.shape(), &image.bytes()[..6]), (&[32, 32, 3][..], &[0, 124, 248, 1, 125, 249][..]));
    fails(
        cifar10([folder.write("cut.bin", &record(1)[..100])]),
        &["cut.bin is damaged", "at byte 1, 3072 bytes of an image should follow, but 99 do"],
    );
    fails(cifar10([folder.write("odd.bin", record(10))]), &["the label before it is 10, and there are 10 classes"]);
    let hundred = cifar100([folder.write("100.bin", [vec![19], record(99)].concat())])?;
    assert_eq!((hundred.get(0)?["coarse"].bytes(), hundred.get(0)?["label"].bytes()), (&[19][..], &[99][..]));
    Ok(())
}

pub fn npy_bytes(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    let padded = format!("{header:<117}\n");
    bytes.extend((padded.len() as u16).to_le_bytes());
    bytes.extend(padded.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// The bytes of six numbers in float32.
fn six_floats() -> Vec<u8> {
    [1.5f32, -2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn npy_values_and_damaged_files() -> Result<()> {
    let folder = Folder::new();
    let at = |name: &str, header: &str, data: &[u8]| folder.write(name, npy_bytes(header, data));
    let floats = six_floats();
    let x = npy(at("x", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", &floats))?;
    assert_eq!((x.shape(), x.to_vec::<f32>()?), (&[2, 3][..], vec![1.5, -2.0, 3.0, 4.0, 5.0, 6.0]));
    // The first dimension innermost; the high byte first; scalars; complex numbers.
    let x = npy(at("f", "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", &floats))?;
    assert_eq!(x.to_vec::<f32>()?, [1.5, 3.0, 5.0, -2.0, 4.0, 6.0]);
    let x = npy(at("b", "{'descr': '>i2', 'fortran_order': False, 'shape': (2,), }", &[1, 2, 0, 5]))?;
    assert_eq!(x.to_vec::<i16>()?, [258, 5]);
    assert_eq!(npy(at("s", "{'descr': '|b1', 'fortran_order': False, 'shape': (), }", &[1]))?.shape(), &[] as &[usize]);
    let c =
        npy(at("c", "{'descr': '>c8', 'fortran_order': False, 'shape': (1,), }", &[0x3f, 0x80, 0, 0, 0x40, 0, 0, 0]))?;
    assert_eq!((c.dtype(), c.to_array()?.imag().item::<f32>()?), (DType::Complex64, 2.0));

    fails(
        npy(at("cut", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", &floats[..20])),
        &["cut is damaged", "at byte 128, 24 bytes of numbers should follow, but 20 do"],
    );
    fails(
        npy(at("o", "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", &[])),
        &["o has no numbers: its dtype is \"|O\""],
    );
    fails(
        npy(at("t", "{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }", &[1, 7])),
        &["at byte 129, the byte 7 is not a boolean"],
    );
    fails(npy(folder.write("p", "no header")), &["at byte 0, there is no header"]);
    fails(npy(folder.write("v", b"\x93NUMPY\x09\x00\x00\x00")), &["version 9"]);
    Ok(())
}

/// Headers that NumPy reads, although it writes none of them.
#[test]
fn npy_headers_of_other_programs() -> Result<()> {
    let folder = Folder::new();
    let floats = six_floats();
    let at = |header: &str| folder.write("h", npy_bytes(header, &floats));
    for header in [
        "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2L, 3L)}",
        "{'shape': (7,), 'descr': '<f4', 'shape': (2, 3), 'fortran_order': True, 'fortran_order': False}",
        "{ 'shape':(2,3) , 'fortran_order':False, 'descr':'<f4' }",
        "{'descr': 'f4', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '=f4', 'fortran_order': False, 'shape': (2, 3), }",
    ] {
        assert_eq!(npy(at(header))?.shape(), [2, 3], "{header}");
    }
    for header in ["{'descr': '<f4', 'fortran_order': False}", "{'descr': '<f4', 'shape': (2, 3), 'fortran_order': "] {
        fails(npy(at(header)), &["the header is"]);
    }
    Ok(())
}

#[test]
fn npz_entries_and_damaged_files() -> Result<()> {
    let folder = Folder::new();
    let floats = six_floats();
    let mut zip = zip::ZipWriter::new(std::fs::File::create(folder.join("z.npz")).expect("a file"));
    for (name, method) in [("a.npy", zip::CompressionMethod::Stored), ("b.npy", zip::CompressionMethod::Deflated)] {
        zip.start_file(name, zip::write::SimpleFileOptions::default().compression_method(method)).expect("an entry");
        zip.write_all(&npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }", &floats))
            .expect("an entry");
    }
    for (name, header) in [("text.npy", "'<U2'"), ("objects.npy", "'|O'"), ("rows.npy", "[('x', '<f4'), ('n', '|S3')]")]
    {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).expect("an entry");
        let header = format!("{{'descr': {header}, 'fortran_order': False, 'shape': (1,), }}");
        zip.write_all(&npy_bytes(&header, &[0; 8])).expect("an entry");
    }
    // macOS adds folders and hidden files, and NumPy ignores files that are no arrays.
    zip.add_directory("rows/", zip::write::SimpleFileOptions::default()).expect("a folder");
    for name in ["__MACOSX/._a.npy", ".DS_Store", "README.txt"] {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).expect("an entry");
        zip.write_all(b"no array").expect("an entry");
    }
    zip.finish().expect("a zip file");
    let arrays = npz(folder.join("z.npz"))?;
    assert_eq!((arrays.len(), arrays["a"].bytes(), arrays["b"].bytes()), (2, floats.as_slice(), floats.as_slice()));
    let mut bytes = std::fs::read(folder.join("z.npz")).expect("the file");
    bytes[170] ^= 1;
    fails(npz(folder.write("odd.npz", &bytes)), &["odd.npz is damaged", "at byte 152", "a.npy"]);
    let mut zip = zip::ZipWriter::new(std::fs::File::create(folder.join("text.npz")).expect("a file"));
    zip.start_file("a.npy", zip::write::SimpleFileOptions::default()).expect("an entry");
    zip.write_all(b"no array").expect("an entry");
    zip.finish().expect("a zip file");
    fails(npz(folder.join("text.npz")), &["text.npz is damaged", "there is no header of NumPy's format", "a.npy"]);
    fails(npz(folder.write("half.npz", &bytes[..100])), &["half.npz is damaged", "not a zip file"]);
    Ok(())
}

/// A tar file's member.
pub fn member(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
    header[156] = b'0';
    header[257..262].copy_from_slice(b"ustar");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut out = header.to_vec();
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn shards(folder: &Folder) -> Vec<std::path::PathBuf> {
    fn file(name: &str, numbers: std::ops::Range<usize>, folder: &Folder) -> std::path::PathBuf {
        let mut bytes: Vec<u8> = numbers
            .flat_map(|i| {
                [
                    member(&format!("d/{i:04}.txt"), format!("text {i}").as_bytes()),
                    member(&format!("d/{i:04}.cls"), &[i as u8]),
                ]
                .concat()
            })
            .collect();
        bytes.extend([0; 1024]);
        folder.write(name, bytes)
    }
    vec![file("0.tar", 0..5, folder), file("1.tar", 5..6, folder), file("2.tar", 6..11, folder)]
}

#[test]
fn tar_files_of_examples() -> Result<()> {
    let folder = Folder::new();
    let files = shards(&folder);
    let examples = WebDataset::new(&files).items().collect::<Result<Vec<_>>>()?;
    assert_eq!(examples.len(), 11);
    assert_eq!(
        (&examples[7]["txt"][..], &examples[7]["cls"][..], &examples[7]["__key__"][..]),
        (&b"text 7"[..], &[7][..], &b"d/0007"[..])
    );
    let bytes = std::fs::read(&files[0]).expect("a file");
    // A file that ends within a member still yields the complete examples before it.
    let cut = folder.write("cut.tar", &bytes[..4610]);
    let mut stream = WebDataset::new([cut]);
    assert!((0..2).all(|_| stream.next_item().expect("an example").is_ok()));
    fails(
        stream.next_item().expect("an error"),
        &["cut.tar is damaged", "at byte 4608, 6 bytes of a member should follow, but 2 do"],
    );
    assert!(stream.next_item().is_none());
    let mut odd = bytes.clone();
    odd[1024 * 2 + 3] ^= 1;
    let mut stream = WebDataset::new([folder.write("odd.tar", odd)]);
    fails(
        stream.next_item().expect("an error"),
        &["odd.tar is damaged", "at byte 2048, it cannot be read as tar", "checksum mismatch"],
    );
    fails(WebDataset::new([folder.join("none.tar")]).next_item().expect("an error"), &["cannot read", "none.tar"]);
    Ok(())
}

fn number(i: usize) -> Result<Example> {
    Ok(Example::from([("x".to_owned(), HostArray::from_slice(&[i as i32], &[])?)]))
}

fn numbers(len: usize) -> SourceStream<(usize, fn(usize) -> Result<Example>)> {
    (len, number as fn(usize) -> Result<Example>).stream()
}

fn values(example: &Example) -> Vec<i32> {
    example["x"].to_vec().expect("numbers")
}

/// A stream that resumes at any position must yield the remaining items of a stream that never stopped.
pub fn goes_on<S: Stream>(make: impl Fn() -> S, len: usize)
where
    S::Item: PartialEq + std::fmt::Debug,
{
    let mut uninterrupted = make();
    let (mut items, mut positions) = (Vec::new(), vec![uninterrupted.position()]);
    for _ in 0..len {
        let Some(item) = uninterrupted.next_item() else { break };
        items.push(item.expect("an item"));
        positions.push(uninterrupted.position());
    }
    assert!(items.len() > 5, "there is something to see: {}", items.len());
    for (at, position) in positions.iter().enumerate() {
        let mut resumed = make();
        // As it comes out of a file; and from a stream that is somewhere else.
        if at % 2 == 1 {
            resumed.next_item();
        }
        let position: Value = serde_json::from_str(&position.to_string()).expect("JSON");
        resumed.seek(&position).expect("a position");
        let remaining: Vec<S::Item> =
            resumed.items().take(items.len() - at).map(|item| item.expect("an item")).collect();
        assert_eq!(remaining, items[at..], "from {at}: {position}");
    }
}

#[test]
fn every_position_is_found_again() -> Result<()> {
    let folder = Folder::new();
    let files = shards(&folder);
    goes_on(|| numbers(10).epochs(3), 40);
    goes_on(|| numbers(10).shuffled(3), 35);
    goes_on(|| numbers(10).shuffled(3).batch(4), 12);
    goes_on(|| numbers(10).epochs(1).repeat().shuffle(4, 5).shard(1, 2), 20);
    goes_on(
        || {
            numbers(10)
                .shuffled(1)
                .mix(2.0, vec![(numbers(7).shuffled(2), 1.0), (numbers(3), 0.5)], 9)
                .expect("weights")
        },
        30,
    );
    goes_on(|| numbers(9).shuffled(7).map(|x| Ok(values(&x))).prefetch(3), 20);
    goes_on(|| numbers(10).epochs(2).prefetch(2), 40);
    goes_on(|| WebDataset::new(&files), 20);
    goes_on(|| WebDataset::new(&files).shuffle(3, 1).repeat().prefetch(2), 25);
    fails(numbers(10).seek(&numbers(11).position()), &["one in other data", "10 examples"]);
    fails(numbers(10).shuffled(1).seek(&numbers(10).shuffled(2).position()), &["seed Some(1)"]);
    fails(numbers(10).seek(&Value::Null), &["needs a number \"epoch\", but is null"]);
    Ok(())
}

#[test]
fn an_epoch_has_each_once_and_orders_differ() -> Result<()> {
    let mut stream = numbers(20).shuffled(4);
    let mut epoch = || -> Vec<i32> { stream.items().take(20).flat_map(|x| values(&x.expect("an item"))).collect() };
    let (first, second) = (epoch(), epoch());
    for order in [&first, &second] {
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 20);
    }
    assert_ne!(first, second);
    // A training and a test set.
    let part = |range| (20usize, number as fn(usize) -> Result<Example>).range(range);
    assert_eq!((part(0..15).len(), part(15..99).len(), part(30..40).len()), (15, 5, 0));
    assert_eq!(values(&part(15..20).get(4)?), [19]);
    // A number beyond a part is none of the rest of its source.
    #[expect(clippy::reversed_empty_ranges, reason = "an empty part")]
    let none = part(4..2);
    fails(none.get(usize::MAX), &["example 18446744073709551615 of 0 was requested"]);
    fails(part(1..3).get(3), &["example 3 of 2 was requested"]);
    fails((3usize, number as fn(usize) -> Result<Example>).get(3), &["example 3 of 3 was requested"]);
    // Blocks are shuffled within themselves.
    let blocks: Vec<i32> =
        numbers(20).epochs(1).shuffle(5, 0).items().flat_map(|x| values(&x.expect("an item"))).collect();
    assert_ne!(blocks, (0..20).collect::<Vec<_>>());
    for (at, block) in blocks.chunks(5).enumerate() {
        let distinct: BTreeSet<i32> = block.iter().copied().collect();
        assert_eq!(distinct, (at as i32 * 5..at as i32 * 5 + 5).collect());
    }
    Ok(())
}

#[test]
fn processes_read_different_examples_and_are_at_one_position() -> Result<()> {
    let mut streams: Vec<_> = (0..3).map(|process| numbers(11).shuffled(2).epochs(1).shard(process, 3)).collect();
    let read: Vec<Vec<i32>> = streams
        .iter_mut()
        .map(|stream| stream.items().take(2).flat_map(|x| values(&x.expect("an item"))).collect())
        .collect();
    assert_eq!(read.concat().iter().collect::<BTreeSet<_>>().len(), 6);
    assert!(streams.iter().all(|stream| stream.position() == streams[0].position()));
    // Two processes go on where three were.
    let mut two = numbers(11).shuffled(2).epochs(1).shard(0, 2);
    two.seek(&streams[0].position())?;
    let remaining: Vec<i32> = two.items().flat_map(|x| values(&x.expect("an item"))).collect();
    assert!(remaining.len() == 2 && remaining.iter().all(|x| !read.concat().contains(x)));
    Ok(())
}

#[test]
fn batches_are_placed_on_devices_and_ragged_batches_are_errors() -> Result<()> {
    setup();
    let rows = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    let mut batches = numbers(20).batch(8).map(move |batch| batch["x"].to_array_on(&rows)).prefetch(2);
    let batch = batches.next_item().expect("a batch")?;
    assert_eq!((batch.to_vec::<i32>()?, batch.addressable_data(3)?.item::<i32>()?), ((0..8).collect(), 3));
    let ragged =
        (4usize, |i: usize| Ok(Example::from([("x".to_owned(), HostArray::from_slice(&vec![0u8; i], &[i])?)])));
    fails(
        ragged.stream().batch(2).next_item().expect("an error"),
        &["example 1 of a batch has [\"x: uint8[1]\"]", "x: uint8[0]"],
    );
    fails(numbers(3).batch(0).next_item().expect("an error"), &["batch size 0"]);
    assert!(numbers(0).shuffled(1).repeat().next_item().is_none());
    fails(Mix::new(vec![(numbers(2), 0.0)], 0), &["not all 0"]);
    fails(Mix::new(vec![(numbers(2), -1.0), (numbers(2), 2.0)], 0), &["not negative"]);
    Ok(())
}

#[test]
fn errors_and_panics_of_a_thread_are_the_programs() -> Result<()> {
    let broken = (6usize, |i: usize| match i {
        2 => Err(shardax::Error::new(shardax::ErrorKind::Value, "example 2 is damaged")),
        4 => panic!("at example 4"),
        i => number(i),
    });
    let mut stream = broken.stream().epochs(1).prefetch(2);
    assert!(stream.next_item().expect("an item").is_ok() && stream.next_item().expect("an item").is_ok());
    fails(stream.next_item().expect("an item"), &["example 2 is damaged"]);
    assert_eq!(values(&stream.next_item().expect("an item")?), [3]);
    fails(stream.next_item().expect("an error"), &["the thread that reads data panicked"]);
    fails(stream.seek(&stream.position()), &["panicked"]);
    assert!(stream.next_item().is_none());
    Ok(())
}

#[test]
fn tables_of_numbers() -> Result<()> {
    let folder = Folder::new();
    let text = "a, b\n1,2.5\n-3,1e3\n";
    let table = csv(folder.write("t.csv", text))?;
    assert_eq!(table.fields()["b"].to_vec::<f32>()?, [2.5, 1000.0]);
    assert_eq!(csv(folder.write("t.csv.gz", gzip(text.as_bytes())))?.fields(), table.fields());
    fails(
        csv(folder.write("few.csv", "a,b\n1,2\n3\n")),
        &["few.csv line 3, at byte 8: it has 1 columns, but the first line names 2"],
    );
    fails(csv(folder.write("empty.csv", "")), &["empty.csv line 1, at byte 0: there is no line of column names"]);
    fails(csv(folder.write("odd.csv", "a,b\n1,x\n")), &["odd.csv line 2, at byte 4: \"x\", of \"b\", is not a number"]);
    fails(csv(folder.write("twice.csv", "a,a\n1,2\n")), &["two columns are called \"a\""]);
    let gaps = folder.write("gaps.csv", "a,b,c\n1,,x\n2,NA,y\n3,4,z\n");
    fails(csv(&gaps), &["gaps.csv line 2, at byte 6: column \"b\" has no number", "Missing::Value(f32::NAN)"]);
    let chosen = CsvOptions::new().columns(["b", "a"]);
    let b = |missing| -> Result<Vec<f32>> { chosen.clone().missing(missing).read(&gaps)?.fields()["b"].to_vec() };
    assert_eq!(b(Missing::Value(-1.0))?, [-1.0, -1.0, 4.0]);
    assert!(b(Missing::Value(f32::NAN))?[1].is_nan());
    assert_eq!(b(Missing::SkipLine)?, [4.0]);
    fails(b(Missing::Previous), &["line 2", "column \"b\" has no number"]);
    fails(CsvOptions::new().columns(["d"]).read(&gaps), &["gaps.csv", "no column \"d\"", "[\"a\", \"b\", \"c\"]"]);
    let previous = CsvOptions::new().missing(Missing::Previous).names(["t", "v"]).delimiter(b'\t').dates(["t"]);
    let times = folder.write("times.tsv", "1970-01-02\t7\n2000-02-29T12:00\t\n2024-12-31 18:00:00Z\t8\n");
    let times = previous.read(times)?;
    // Python: `(datetime(2000, 2, 29, 12) - datetime(1970, 1, 1)) / timedelta(days=1)`.
    assert_eq!(times.fields()["t"].to_vec::<f64>()?, [1.0, 11016.5, 20088.75]);
    assert_eq!(times.fields()["v"].to_vec::<f32>()?, [7.0, 7.0, 8.0]);
    for day in ["2024-13-01", "2024-02-30", "2023-02-29", "1900-02-29", "2024-04-31", "2024-04-00", "2024-04-30T1.5:30"]
    {
        let table = previous.read(folder.write("day.tsv", &format!("{day}\t1\n")));
        fails(table, &["is not a date such as 2024-01-31", day]);
    }
    let series = csv(folder.write("series.csv", "v\n0\n1\n2\n3\n4\n"))?;
    let windows = series.clone().windows(2, 2);
    assert_eq!((windows.len(), windows.get(1)?["v"].to_vec::<f32>()?), (2, vec![2.0, 3.0]));
    assert_eq!((series.clone().windows(6, 1).len(), series.windows(2, 0).len()), (0, 0));
    fails(windows.get(2), &["example 2 of 2"]);
    let packed = gzip(text.as_bytes());
    fails(csv(folder.write("cut.csv.gz", &packed[..packed.len() - 9])), &["cut.csv.gz line", "at byte "]);
    Ok(())
}

#[test]
fn tables_with_texts() -> Result<()> {
    let folder = Folder::new();
    let ratings =
        folder.write("ratings.csv", "user,film,rating\nu9,Alien,4\nu10, Brazil ,NA\nu9,\"Cure, 1997\",5\nNA,Alien,1\n");
    let options = CsvOptions::new().categories(["user", "film"]);
    fails(options.read(&ratings), &["ratings.csv line 3", "column \"rating\" has no number"]);
    fails(options.clone().missing(Missing::Value(0.0)).read(&ratings), &["line 5", "column \"user\" has no number"]);
    // A line that is skipped adds no text.
    let table = options.clone().missing(Missing::SkipLine).read(&ratings)?;
    assert_eq!(
        (table.categories("user"), table.categories("film")),
        (&["u9".to_owned()][..], &["Alien", "Cure, 1997"].map(str::to_owned)[..])
    );
    assert_eq!(table.fields()["film"].to_vec::<i32>()?, [0, 1]);
    let previous = options.missing(Missing::Previous).read(&ratings)?;
    assert_eq!(previous.categories("user"), ["u10", "u9"]);
    assert_eq!(previous.fields()["user"].to_vec::<i32>()?, [1, 0, 1, 1]);
    assert_eq!(previous.fields()["rating"].to_vec::<f32>()?, [4.0, 4.0, 5.0, 1.0]);
    assert!(previous.categories("rating").is_empty());
    fails(CsvOptions::new().read(&ratings), &["\"u9\", of \"user\", is not a number", "CsvOptions::categories"]);
    fails(CsvOptions::new().categories(["name"]).read(&ratings), &["no column \"name\""]);
    Ok(())
}

#[test]
fn text_in_windows() -> Result<()> {
    let folder = Folder::new();
    let path = folder.write("text", (0..=255u8).collect::<Vec<_>>());
    let text = text_windows(&path, 100)?;
    assert_eq!(text.len(), 2);
    let window = text.get(1)?;
    assert_eq!(window["tokens"].to_vec::<i32>()?, (100..200).collect::<Vec<_>>());
    assert_eq!(window["targets"].to_vec::<i32>()?, (101..201).collect::<Vec<_>>());
    std::fs::File::options().write(true).open(&path).expect("the file").set_len(150).expect("the file");
    fails(text.get(1), &["text is damaged", "at byte 100"]);
    fails(text_windows(&path, 150), &["150 bytes, too few for a window of 150"]);
    fails(text_windows(&path, 0), &["too few for a window of 0"]);
    let tokens = token_windows((0..=256).collect(), 100)?;
    assert_eq!((tokens.len(), tokens.get(1)? == window), (2, true));
    fails(tokens.get(2), &["window 2 of 2"]);
    fails(token_windows(vec![1; 5], 5), &["5 tokens are too few for a window of 5"]);
    fails(token_windows(vec![1], 0), &["too few for a window of 0"]);
    Ok(())
}

/// A stream of one epoch that is repeated has another order each time, also after it has resumed.
#[test]
fn repeated_epochs_have_orders_of_their_own() -> Result<()> {
    let plain = || (50usize, Ok).stream().shuffled(3).epochs(1).repeat();
    let buffered = || (50usize, Ok).stream().epochs(1).shuffle(20, 3).repeat();
    fn check(mut stream: impl Stream<Item = usize>, mut resumed: impl Stream<Item = usize>) -> Result<()> {
        let mut epochs = Vec::new();
        for _ in 0..3 {
            let epoch = stream.items().take(50).collect::<Result<Vec<usize>>>()?;
            let mut sorted = epoch.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..50));
            epochs.push(epoch);
        }
        assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2] && epochs[0] != epochs[2]);
        stream.items().take(30).collect::<Result<Vec<usize>>>()?;
        resumed.seek(&stream.position())?;
        let (rest, same) = (stream.items().take(40), resumed.items().take(40));
        assert_eq!(rest.collect::<Result<Vec<usize>>>()?, same.collect::<Result<Vec<usize>>>()?);
        Ok(())
    }
    check(plain(), plain())?;
    check(buffered(), buffered())?;
    // The first order equals the order of a stream that is not repeated.
    let once: Vec<usize> = (50usize, Ok).stream().shuffled(3).epochs(1).items().collect::<Result<_>>()?;
    assert_eq!(plain().items().take(50).collect::<Result<Vec<usize>>>()?, once);
    Ok(())
}

/// macOS adds `._NAME` next to each file; a hidden file is no example either.
#[test]
fn hidden_members_of_tar_files_are_no_examples() -> Result<()> {
    let folder = Folder::new();
    let names = [
        "._d",
        "d/._0001.jpg",
        "d/0001.jpg",
        "d/.DS_Store",
        "d/._0001.cls",
        "d/0001.cls",
        ".hidden",
        "README",
        "d/0002.jpg",
    ];
    let bytes: Vec<u8> = names.iter().flat_map(|name| member(name, name.as_bytes())).chain([0; 1024]).collect();
    let mut examples = WebDataset::new([folder.write("mac.tar", bytes)]);
    let keys = examples.items().map(|example| Ok(example?.into_keys().collect::<Vec<_>>()));
    let keys = keys.collect::<Result<Vec<_>>>()?;
    assert_eq!(keys, [vec!["__key__", "cls", "jpg"], vec!["__key__", "jpg"]]);
    Ok(())
}
