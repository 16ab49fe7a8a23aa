# Prints the statements of a model that a search has not reached: awk -f unreached.awk pan.c OUTPUT
#
# The body of an inline stands in the search once for each of its calls, and some of these cannot reach all of it. So a line of the model
# counts as reached if one of them has reached it. pan.c says on which line each state stands, and which states a search does not report.
FNR == 1 { file++ }
file == 1 && /^short src_ln[0-9]+ \[\]/ { read_into("line") }
file == 1 && /^uchar reached[0-9]+ \[\]/ { read_into("silent") }
file == 1 && /}/ { array = "" }
file == 1 && array != "" && !/\[\]/ {
	count = split($0, values, ",")
	for (i = 1; i <= count; i++) {
		if (values[i] !~ /[0-9]/) continue
		if (array == "line") line[process, at++] = values[i] + 0
		else silent[process, at++] = values[i] + 0
	}
}
file == 2 && FNR == 1 {
	for (state in line) if (!silent[state]) reported[line[state]]++
}
file == 2 && /^unreached in/ { where = $NF }
file == 2 && where != "Monitor" && !/-end-/ && match($0, /\.pml:[0-9]+, state [0-9]+/) {
	split(substr($0, RSTART + 5, RLENGTH - 5), place, ", state ")
	if (!seen[where, place[2]]++ && ++missed[place[1]] == reported[place[1]]) print
}

function read_into(name) {
	array = name
	match($2, /[0-9]+$/)
	process = substr($2, RSTART)
	at = 0
}
