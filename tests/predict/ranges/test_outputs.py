"""Outputs: their names; they are either complete or missing, on a disk and in S3."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.predict.ranges.job import RangeJob, translation_farm
from towernmt.predict.ranges.outputs import check_writable_output, is_per_text, output_paths, write_joined
from towernmt.predict.ranges.plan import RangeReader, make_plan, open_texts
from towernmt.predict.ranges.work_directory import ResultFile, WorkDirectory


def result(path: Path) -> ResultFile:
    return ResultFile(path, hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_folder_or_a_name_in_braces_gives_each_text_a_file_of_its_own(texts: list[Path], tmp_path: Path) -> None:
    found = open_texts([str(tmp_path / "*.de")])
    assert output_paths("all.en", found) == ["all.en"] * 3 and not is_per_text("all.en")
    assert output_paths("out/", found) == ["out/a.de", "out/b.de", "out/c.de"]
    assert output_paths(str(tmp_path), found)[0] == f"{tmp_path}/a.de"
    assert output_paths("s3://x/{name}.en?region=r", found)[0] == "s3://x/a.de.en?region=r"
    assert output_paths("s3://x/y/?region=r", found)[0] == "s3://x/y/a.de?region=r"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.de.gz").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"a.de and .*a.de.gz would both be written to out/a.de"):
        output_paths("out/", [*found, *open_texts([str(tmp_path / "sub/a.de.gz")])])


def test_an_output_takes_the_place_of_the_old_one_when_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "0").write_text("a\n")
    check_writable_output(str(tmp_path / "new/folder/out"))
    with pytest.raises(DataError, match="missing: cannot read"):
        write_joined(str(tmp_path / "old"), [result(tmp_path / "0"), ResultFile(tmp_path / "missing", "")])
    assert (tmp_path / "old").read_text() == "old" and not (tmp_path / "old.tmp").exists()
    write_joined(str(tmp_path / "old"), [result(tmp_path / "0"), result(tmp_path / "0")])
    assert (tmp_path / "old").read_text() == "a\na\n"


def test_a_result_with_another_checksum_does_not_reach_the_output(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "0").write_text("a\n" * 10)
    whole = result(tmp_path / "0")
    (tmp_path / "0").write_text("a\n" * 9 + "b\n")     # of the same size
    with pytest.raises(DataError, match="0 is damaged: .* Start the same command again"):
        write_joined(str(tmp_path / "old"), [whole])
    assert (tmp_path / "old").read_text() == "old" and not (tmp_path / "old.tmp").exists()


def test_texts_in_s3_are_translated_to_objects(s3: Any, texts: list[Path], tmp_path: Path, fake_workers: Any,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towernmt.dataflow.storage.s3_storage.PART_BYTES", 5 << 20)
    bucket, options = s3.new_bucket(), f"?endpoint_url={s3.url}&region=us-east-1"
    for path in texts:
        s3.client().put_object(Bucket=bucket, Key=f"mono/{path.name}", Body=path.read_bytes())
    found = open_texts([f"s3://{bucket}/mono/*.de{options}"])
    plan = make_plan(found, [], [0, 1, 2], 500)
    outputs = output_paths(f"s3://{bucket}/back/{{name}}.en{options}", found)
    for place in outputs:
        check_writable_output(place)
    workers, directory = fake_workers(3, seed=1, losses=0.05), WorkDirectory(tmp_path / "work")
    farm = translation_farm(workers, directory.path)
    directory.begin(farm.wait_for_first(), plan)
    job = RangeJob(directory, plan, RangeReader(plan, found, []), [text.name for text in found],
                   [[output] for output in outputs], farm, io.StringIO())
    job.run({"model": "a"})
    for path in texts:
        written = s3.client().get_object(Bucket=bucket, Key=f"back/{path.name}.en")["Body"].read()
        assert written == b"".join(b" ".join(reversed(line.split())) + b"\n" for line in path.read_bytes().splitlines())
    large = tmp_path / "large"
    large.write_bytes(bytes(7 << 20))
    write_joined(f"s3://{bucket}/large{options}", list(map(result, [large, texts[0], large])))
    written = s3.client().get_object(Bucket=bucket, Key="large")["Body"].read()
    assert written == large.read_bytes() + texts[0].read_bytes() + large.read_bytes()
    with pytest.raises(DataError, match="does not exist"):
        check_writable_output(f"s3://missing-bucket/out{options}")
