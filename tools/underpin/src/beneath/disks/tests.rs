mod kinds;

use super::*;

#[test]
fn a_disk_is_a_name_and_a_file() {
    let disk = Served::parse("data=/srv/a=b.img").unwrap();
    assert_eq!(
        (&*disk.name, disk.file.as_path()),
        ("data", Path::new("/srv/a=b.img"))
    );
    assert!(!disk.is_scratch && disk.format == Format::Raw);
    let scratch = Served::parse("tmp=scratch:/srv/b.img").unwrap();
    assert_eq!(
        (&*scratch.file, scratch.is_scratch),
        (Path::new("/srv/b.img"), true)
    );
    let image = Served::parse("data=/a,format=raw,format=qcow2").unwrap();
    assert_eq!(image.format, Format::Qcow2);
    assert_eq!(image.file, Path::new("/a,format=raw"));
    for disk in [disk, scratch, image] {
        assert_eq!(Served::parse(disk.word().to_str().unwrap()), Ok(disk));
    }
    assert!(Served::parse("x=scratch:").is_err());
    assert!(Served::parse("data=/a,format=vmdk").is_err_and(|why| why.contains("'vmdk'")));
    assert!(Served::parse("data").is_err() && Served::parse("=x").is_err());
    assert!(Served::parse(&format!("{}=x", "n".repeat(41))).is_err());
}

/// Requests as EL2 leaves them in the area, on plain files.
#[test]
fn requests_are_done_once_they_are_asked_and_only_within_the_disk() {
    let directory = std::env::temp_dir().join(format!("underpin-served-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let path = |name: &str| directory.join(name);
    fs::write(path("disk"), [7; 4096]).unwrap();
    fs::write(
        path("area"),
        vec![0; (HEAD_BYTES + 2 * DATA_BYTES) as usize],
    )
    .unwrap();
    let area = File::options()
        .read(true)
        .write(true)
        .open(path("area"))
        .unwrap();
    let server = Server {
        area,
        files: vec![open_disk(&path("disk"), Format::Raw).unwrap()],
    };
    let todo = |operation, at, bytes, slot| Asked {
        slot,
        ticket: 1,
        operation,
        disk: 0,
        at,
        bytes,
    };
    let mut data = [0; 512];
    server
        .execute(todo(operation::READ, 0, 512, 1), &mut data)
        .unwrap();
    let mut seen = [0; 512];
    server
        .area
        .read_exact_at(&mut seen, HEAD_BYTES + DATA_BYTES)
        .unwrap();
    assert_eq!(seen, [7; 512]);
    server.area.write_all_at(&[9; 512], HEAD_BYTES).unwrap();
    server
        .execute(todo(operation::WRITE, 512, 512, 0), &mut data)
        .unwrap();
    server
        .execute(todo(operation::FLUSH, 0, 0, 0), &mut [])
        .unwrap();
    assert_eq!(
        fs::read(path("disk")).unwrap()[511..1025],
        [&[7][..], &[9; 512], &[7]].concat()
    );
    assert!(
        server
            .execute(todo(operation::WRITE, 4096, 512, 0), &mut data)
            .is_err()
    );
    assert!(
        server
            .execute(
                Asked {
                    disk: 1,
                    ..todo(operation::READ, 0, 512, 0)
                },
                &mut data
            )
            .is_err()
    );
    // Nobody else may serve it meanwhile.
    assert!(open_disk(&path("disk"), Format::Raw).is_err());
    fs::remove_dir_all(&directory).unwrap();
}

/// An area that asks for this in its first slot, and the server of one disk.
fn asking(directory: &Path, operation: u32, disk: File) -> Server {
    fs::create_dir_all(directory).unwrap();
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    let area = options.open(directory.join("area")).unwrap();
    area.set_len(HEAD_BYTES + DATA_BYTES).unwrap();
    let record = Record {
        ticket: 1,
        operation,
        ..Record::default()
    };
    area.write_all_at(record.as_bytes(), 0).unwrap();
    let files = vec![(Image::Raw(disk), 4096)];
    Server { area, files }
}

/// A flush is answered as the kernel answers the server's: what has nothing to flush refuses it.
#[test]
fn a_flush_is_answered_as_that_of_the_file() {
    let name = format!("underpin-flush-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("disk"), [0; 4096]).unwrap();
    for (path, done) in [
        (directory.join("disk"), true),
        (PathBuf::from("/dev/null"), false),
    ] {
        let disk = File::options().write(true).open(path).unwrap();
        let server = asking(&directory, operation::FLUSH, disk);
        let mut head = vec![0; HEAD_BYTES as usize];
        server.area.read_exact_at(&mut head, 0).unwrap();
        server.answer_all(&head, &mut []).unwrap();
        let mut answered = [0; 8];
        server.area.read_exact_at(&mut answered, ANSWER_AT).unwrap();
        assert_eq!(u64::from_le_bytes(answered), answer(1, done));
    }
    fs::remove_dir_all(&directory).unwrap();
}

/// A VM is told that a write is done when `write` has returned: then the data are on the file's disk.
#[test]
fn a_file_is_written_through() {
    let name = format!("underpin-through-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    fs::write(&path, [0; 4096]).unwrap();
    for format in [Format::Raw, Format::Qcow2] {
        let file = open_durable(&path, format).unwrap();
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        assert!(flags.contains(OFlags::DSYNC), "{format:?}: {flags:?}");
    }
    fs::remove_file(&path).unwrap();
}
