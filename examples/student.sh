#!/usr/bin/env bash
# Distil a student from a trained run, export it as a web page, and compare it with the teacher.
#
#     TEACHER=runs/de-en TEXT=text/train FROM=de TO=en VALID=text/valid TEST=text/test OUTPUT=student examples/student.sh
#
# TEXT, VALID and TEST are file names without suffixes: text/valid stands for text/valid.de and text/valid.en. Only the source
# side of TEXT is read; it may contain more text than the teacher was trained on. Steps whose output exists are skipped, so the
# same command resumes after a stop.
set -euo pipefail

TEACHER=${TEACHER:-runs/de-en}                          # a finished run
TEXT=${TEXT:-train} VALID=${VALID:-valid} TEST=${TEST:-test}
FROM=${FROM:-de} TO=${TO:-en}                           # codes of the languages, and suffixes of the files
OUTPUT=${OUTPUT:-student}                               # directory of all output
LANGUAGES=(--source-language "${FROM_NAME:-$FROM}" --target-language "${TO_NAME:-$TO}")     # as FROM_NAME=de:German
SEARCH=${SEARCH:---beam 5 --retry}                      # how the teacher translates: options of `towernmt translate`
STUDENT=${STUDENT:---preset student}                    # how the student is trained: options of `towernmt train`
GUIDED=(model.guided_alignment_weight=0.1 model.guided_alignment_layer="${LAYERS:-2}")      # LAYERS: of its decoder

towernmt=${TOWERNMT:-towernmt}                          # or "python -m towernmt"
here=$(dirname "${BASH_SOURCE[0]}")
mkdir -p "$OUTPUT"
missing() { [ ! -e "$OUTPUT/$1" ] && echo "== $1"; }

# The teacher's translations (Kim & Rush 2016), and their word alignments.
if missing "distilled.$TO"; then
    # shellcheck disable=SC2086
    $towernmt translate --model "$TEACHER" $SEARCH --input "$TEXT.$FROM" --output "$OUTPUT/distilled.$TO"
fi
if missing links; then
    $towernmt align --model "$TEACHER" --source "$TEXT.$FROM" --target "$OUTPUT/distilled.$TO" --output "$OUTPUT/links"
fi
if missing data/manifest.json; then     # the last file: an interrupted preparation is resumed
    $towernmt prepare --source "$TEXT.$FROM" --target "$OUTPUT/distilled.$TO" --alignments "$OUTPUT/links" \
        --valid-source "$VALID.$FROM" --valid-target "$VALID.$TO" --output "$OUTPUT/data" \
        --source-vocab "$TEACHER/vocabulary/source.model" --target-vocab "$TEACHER/vocabulary/target.model"
fi
# The first head of the last decoder layer learns the alignments, with which the engine places HTML tags. An unfinished run is
# resumed.
# shellcheck disable=SC2086
$towernmt train --data "$OUTPUT/data" --logdir "$OUTPUT/run" $STUDENT --set "${GUIDED[@]}" ${SETTINGS:-}
if missing site; then
    $towernmt export --model "$OUTPUT/run" --format web --output "$OUTPUT/site" "${LANGUAGES[@]}"
fi
if missing "page.$TO"; then
    node "$here/translate_page.js" "$OUTPUT/site" < "$TEST.$FROM" > "$OUTPUT/page.$TO.unfinished"
    mv "$OUTPUT/page.$TO.unfinished" "$OUTPUT/page.$TO"
fi
$towernmt evaluate --source "$TEST.$FROM" --reference "$TEST.$TO" --system "teacher=$TEACHER" \
    --system "student=$OUTPUT/run" --system "page=$OUTPUT/page.$TO" --metrics bleu chrf
echo "The page: python -m http.server --directory $OUTPUT/site 8000"
