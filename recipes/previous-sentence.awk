# Puts the previous sentence of the document and a mark before each source: lines are `source` or `source<TAB>target`, an empty
# line ends a document, and gives no line. The first sentence of a document has the mark alone before it.
BEGIN { FS = OFS = "\t"; mark = "<before>" }
/^[ \t\r]*$/ { before = ""; next }
{ source = $1; $1 = (before == "" ? "" : before " ") mark " " source; before = source; print }
