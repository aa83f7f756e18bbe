# Put the previous sentence of the document and a mark before each source. Lines are `source` or `source<TAB>target`. An empty
# line ends a document and is not printed. The first sentence of a document has only the mark before it.
BEGIN { FS = OFS = "\t"; mark = "<before>" }
/^[ \t\r]*$/ { before = ""; next }
{ source = $1; $1 = (before == "" ? "" : before " ") mark " " source; before = source; print }
