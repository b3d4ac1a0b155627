#!/usr/bin/env bash
# Checks the report's HTML page in a real browser: tables, links, plots, light and dark mode, the width of a
# phone, print, and that the page makes no network request. Needs a release build, a data set (make data) and
# chromium (scripts/setup.sh --all).
#
# KEEP=DIR keeps the page and the screenshots in DIR.
#
# `check` calls functions by name, so shellcheck believes that they are not called.
# shellcheck disable=SC2317
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.." || exit 1
# shellcheck source-path=SCRIPTDIR source=common.sh
. tests/report/common.sh
[ -x "$bin" ] || die "no $bin; run make build"
command -v chromium >/dev/null || die "no chromium; run scripts/setup.sh --all"
trap 'rm -rf "$work"' EXIT
sweep=$work/results/sweep
page=$work/page/report.html

# Chromium's own requests are disabled, so all requests are the page's.
browse() { # browse OPTIONS... URL
  timeout "$limit" chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --disable-default-apps --hide-scrollbars \
    --user-data-dir="$(mktemp -d "$work/browser.XXXXXX")" "$@"
}

train() { # train RANKS NAME OPTIONS...
  local ranks=$1 name=$2
  shift 2
  # shellcheck disable=SC2086 # no word or one
  timeout "$limit" mpirun $as_root -n "$ranks" --oversubscribe --bind-to core:overload-allowed "$bin" -q train \
    --data-root "${DATA:-data/digits}" --epochs 2 --train-samples 1280 --test-samples 500 --log-every 5 \
    --out "$sweep/$name" "$@" >"$sweep/$name.log" 2>&1
}

run_entry() { # run_entry NAME REPEAT STATE
  echo "{\"name\": \"$1\", \"repeat\": $2, \"varied\": {}, \"state\": \"$3\", \"error\": \"no ssh\"}"
}

lengthen() { # lengthen RUN SECONDS
  local steps ms
  steps=$(sed -n 's/^ *"steps": \([0-9]*\),.*/\1/p' "$sweep/$1/run.json")
  # A report leaves out values that contradict each other, so ms_per_step is changed together with train_seconds.
  # "rest" is 0 as in runs of older programs: the parts of a step then need not add up.
  ms=$(awk -v seconds="$2" -v steps="$steps" 'BEGIN { print 1000 * seconds / steps }')
  sed -Ezi "s/(\"train_seconds\": )[0-9.e-]*/\1$2/; s/(\"ms_per_step\": )[0-9.e-]*/\1$ms/; s/(\"rest\": )[0-9.e-]*/\10.0/
    s/(\"others_cpu_percent\": )[0-9.]*/\10.0/; s/(\"others_cpu_percent_by_host\": )[{][^}]*[}]/\1{}/" "$sweep/$1/run.json"
}

# Makes a sweep of real runs: with a repeat, a run that failed, and an incomplete run.
a_sweep_is_run() {
  mkdir -p "$sweep" "$work/results/half/checkpoints" || return
  train 1 1x1-1 && train 1 1x1-2 && train 2 1x2-mpi && train 2 1x2-gloo --backend gloo || return
  # Edits the runs as if they had been long enough to be compared, on an idle machine.
  lengthen 1x1-1 8.5 && lengthen 1x1-2 8.25 && lengthen 1x2-mpi 5.25 && lengthen 1x2-gloo 6.75 || return
  {
    echo '{"name": "topologies", "title": "Topologies", "reference": "topologies", "scale": "quick", "runs": ['
    run_entry 1x1-1 1 completed && echo ,
    run_entry 1x1-2 2 completed && echo ,
    run_entry 1x2-mpi 1 completed && echo ,
    run_entry 1x2-gloo 1 completed && echo ,
    run_entry 2x1-mpi 1 failed
    echo ']}'
  } >"$sweep/sweep.json"
  # A run that was started has a log, even if it failed.
  echo "no ssh" >"$sweep/2x1-mpi.log"
  # shellcheck disable=SC2086 # no word or one
  timeout "$limit" mpirun $as_root -n 2 --oversubscribe --bind-to core:overload-allowed "$bin" -q bench allreduce \
    --sizes 4..4KiB --backends mpi --iterations 20 --csv "$sweep/latency.csv"
}

the_page_is_written() {
  "$bin" report "$sweep" "$work/results/half" --format html --out "$work/page" || return
  local stem
  for stem in topologies-{time,efficiency,communication,loss,accuracy,confusion} allreduce-1-latency; do
    grep -q '</svg>' "$work/page/$stem.svg" || return
  done
  for stem in topologies topologies-ratios topologies-published; do
    [ -s "$work/page/$stem.md" ] && [ -s "$work/page/$stem.csv" ] || return
  done
}

it_needs_nothing_else() {
  [ -s "$page" ] && ! grep -oE '<script|<iframe|@import|url\(|(src|href)="(https?:)?//[^"]*"' "$page"
}

# Copies the page with a script at its end, which prints how the browser lays out the page. STYLE is a command
# that edits the copy. FRAME is the width of a frame in pixels: a window cannot be as narrow as a phone, but a
# frame can.
measured() { # measured OUT OPTIONS...
  local out=$1 shown=measured
  shift
  {
    ${STYLE-cat} "$page"
    cat <<'SCRIPT'
<script>
      // What scrolls is known once it is drawn.
      const drawn = () => new Promise(requestAnimationFrame);
      const measure = () => {
        const lines = ["background " + getComputedStyle(document.body).backgroundColor,
        "overflow " + (document.documentElement.scrollWidth - innerWidth)];
      for (const element of document.querySelectorAll("body *")) {
        const right = Math.round(element.getBoundingClientRect().right);
        if (right > innerWidth && !element.closest("div.scroll")) {
          lines.push(["wide", element.tagName, right, element.textContent.trim().slice(0, 80)].join(" "));
        }
      }
      for (const figure of document.querySelectorAll("figure")) {
        const box = figure.querySelector("svg").getBoundingClientRect();
        lines.push(["picture", figure.id, Math.round(box.width), Math.round(box.height)].join(" "));
      }
      for (const box of document.querySelectorAll("div.scroll")) {
        const shown = box.querySelector("table, svg");
        const hint = getComputedStyle(box, "::before").display;
        lines.push([shown.tagName, shown.id || box.closest("figure").id, box.scrollWidth - box.clientWidth,
          hint, box.checkVisibility() ? "seen" : "folded"].join(" "));
      }
      const sizes = [...document.querySelectorAll("svg text")].map(text => {
        const svg = text.ownerSVGElement;
        return parseFloat(text.getAttribute("font-size")) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
      });
      const texts = [...document.querySelectorAll("main *, nav *")].filter(element => !element.closest("svg"));
      sizes.push(...texts.map(element => parseFloat(getComputedStyle(element).fontSize)));
      lines.push("text " + Math.min(...sizes));
      const drawn = sizes.slice(0, document.querySelectorAll("svg text").length);
      lines.push(["plots", Math.min(...drawn), Math.max(...drawn), parseFloat(getComputedStyle(document.body).fontSize)].join(" "));
      for (const cell of document.querySelectorAll("#topologies tbody tr:first-child td")) {
        if (cell.textContent.includes("[")) lines.push("accuracy " + Math.round(cell.getBoundingClientRect().left));
      }
      scrollTo(0, document.documentElement.scrollHeight);
      const contents = document.querySelector("nav").getBoundingClientRect();
      lines.push(["contents", Math.round(scrollY), Math.round(contents.top), Math.round(contents.bottom), innerHeight].join(" "));
      for (const row of document.querySelectorAll("tbody tr")) {
        lines.push([row.closest("table").id, ...[...row.cells].map(cell => cell.textContent)].join("|"));
      }
      for (const link of document.querySelectorAll("td a")) lines.push("link " + link.getAttribute("href"));
      const show = text => {
        document.body.innerHTML = "<pre></pre>";
        document.querySelector("pre").textContent = text;
      };
      parent === window ? show(lines.join("\n")) : parent.postMessage(lines.join("\n"), "*");
      };
      drawn().then(drawn).then(measure);
    </script>
SCRIPT
  } >"$work/page/measured.html"
  if [ -n "${FRAME-}" ]; then
    shown=framed
    framed measured.html >"$work/page/framed.html"
    cat >>"$work/page/framed.html" <<'SCRIPT'
    <script>
      addEventListener("message", event => {
        document.body.innerHTML = "<pre></pre>";
        document.querySelector("pre").textContent = event.data;
      });
    </script>
SCRIPT
  fi
  # The browser may end before it has laid out the page, so this is repeated.
  await laid_out "$out" "$@" "file://$work/page/$shown.html" && cat "$out"
}

laid_out() { # laid_out OUT OPTIONS... URL
  local out=$1
  shift
  browse "$@" --virtual-time-budget=10000 --dump-dom 2>/dev/null |
    sed -n '/<pre>/,$ { s/.*<pre>//; s/<.*//; p }' >"$out"
  grep -q '^background' "$out"
}

framed() { # framed FILE
  echo "<body style='margin: 0'><iframe src='$1' style='width: ${FRAME}px; height: 2400px; border: 0'></iframe></body>"
}

printed() { # printed FILE: the page with its print style
  sed 's/@media print/@media all/' "$1"
}

tables_have_their_cells() {
  local seconds
  seconds=$(sed -n 's/.*"train_seconds": \([0-9.]*\).*/\1/p' "$sweep/1x2-gloo/run.json")
  local accuracy='[0-9.]+ \[[0-9.]+–[0-9.]+\]'
  grep -E "^topologies\|1x2\|gloo\|((no|yes)\|)?$accuracy\|$(printf %.2f "$seconds") ᶜ\|1.24\|62\|" "$work/light" &&
    grep -E "^topologies\|1x1\|mpi\|((no|yes)\|)?$accuracy\|8.38 \(8.25–8.50\)\|1.00\|100\|" "$work/light" &&
    grep -E '^topologies-more\|1x1\|mpi\|' "$work/light" &&
    grep -E '^topologies-ratios\|1x2, mpirun, gloo' "$work/light" &&
    grep -F 'topologies-published|1x2|gloo|no|gloo|120|' "$work/light" &&
    [ "$(grep -c '^topologies|' "$work/light")" -eq 3 ]
}

# Every number of a run must link to the run, and every number of a benchmark to its table.
links_lead_to_runs() {
  local link count=0
  while read -r link; do
    [ -e "$work/page/$link/run.json" ] || { [ "${link%.csv}" != "$link" ] && [ -s "$work/page/$link" ]; } ||
      { echo "$link has no run.json"; return 1; }
    count=$((count + 1))
  done < <(sed -n 's/^link //p' "$work/light")
  note="$count links"
  [ "$count" -gt 20 ]
}

# The page must begin with a card and the findings, and the findings must link to their tables.
the_page_begins_with_answers() {
  grep -oE '<dt>[^<]*</dt><dd><strong>[^<]*' "$page" | sed 's/<[^>]*>/ /g'
  grep -F '<dt>fastest</dt><dd><strong>1x2 (mpi)</strong>' "$page" &&
    grep -F '<dt>mpi : gloo</dt><dd><strong>1 : 1.29</strong>' "$page" &&
    grep -F '<dt>efficiency</dt><dd><strong>80%</strong>' "$page" &&
    grep -E '<dt>highest test accuracy on [^<]*</dt>' "$page" && grep -F '<dt>data set</dt>' "$page" &&
    grep -F '<dt>accuracy lost</dt>' "$page" && grep -F '<dt>memory</dt>' "$page" &&
    grep -F '<a href="#topologies-part">' "$page" && grep -F 'fastest: 1x2 (mpi), 1.60 times as fast as 1x1' "$page" &&
    grep -F 'gloo takes 1.29 times as long as mpi on 1x2' "$page"
}

# In a window of 1,200 pixels, no table may need to scroll.
tables_fit() {
  measured "$work/usual" --window-size=1200,1000 >/dev/null
  awk '$1 == "TABLE" { n++; if ($3 > 0) { print; bad = 1 } } END { exit bad || !n }' "$work/usual"
}

# A table that scrolls must have a line that says so. Other tables must not have this line.
hints_are_where_it_scrolls() {
  awk '($1 == "TABLE" || $1 == "svg") && $5 == "seen" { if (($3 > 0) != ($4 == "block")) { print; bad = 1 } if ($3 > 0) n++ }
    END { exit bad || !n }' "$work/phone"
}

text_is_legible() { # text_is_legible FILE
  note=$(grep '^text' "$1")
  awk '$1 == "text" { found = 1; bad = $2 < 11 } END { exit bad || !found }' "$1"
}

# The text in plots is at most as large as the page's text, and at least 0.8 times as large.
plots_have_the_pages_text() { # plots_have_the_pages_text FILE
  note=$(grep '^plots' "$1")
  awk '$1 == "plots" { found = 1; bad = $2 < 0.8 * $4 || $3 > $4 } END { exit bad || !found }' "$1"
}

# On a phone, the column of the accuracy must begin inside the window.
the_accuracy_is_in_view() {
  note=$(grep '^accuracy' "$work/phone")
  awk '$1 == "accuracy" { found = 1; bad = $2 > 330 } END { exit bad || !found }' "$work/phone"
}

# At the end of the page, the table of contents must still be in the window.
contents_stay_in_view() { # contents_stay_in_view FILE
  note=$(grep '^contents' "$1")
  awk '$1 == "contents" { found = 1; bad = $2 < 100 || $3 < 0 || $4 > $5 } END { exit bad || !found }' "$1"
}

# Columns that are folded on a screen must be printed.
print_has_all_columns() {
  awk '$1 == "TABLE" && $2 ~ /-more/ { n++; if ($5 != "seen" || $3 > 0) { print; bad = 1 } } END { exit bad || !n }' "$work/print" &&
    awk '$1 == "TABLE" && $2 ~ /-more/ && $5 == "seen" { print; bad = 1 } END { exit bad }' "$work/light"
}

# The list of what is not shown must be below all tables and pictures, and nowhere else.
what_is_not_shown_is_at_the_end() {
  [ "$(grep -o 'id="[a-z0-9-]*-part"' "$page" | tail -n 1)" = 'id="not-shown-part"' ] &&
    [ "$(grep -oF 'sweep/2x1-mpi: failed: no ssh; see ' "$page" | wc -l)" -eq 1 ]
}

failures_are_named() {
  grep -F 'sweep/2x1-mpi: failed: no ssh; see ' "$page" && grep -F 'half: has no run.json' "$page"
}

pictures_have_a_size() { # pictures_have_a_size FILE LEAST
  note=$(grep -c '^picture' "$1")
  awk -v least="$2" '$1 == "picture" { if ($3 < least || $4 < least / 3) { print; bad = 1 } else n++ }
    END { exit bad || n != 7 }' "$1"
}

# The page must not be wider than the window; wide tables scroll separately.
nothing_overflows() {
  local layout
  for layout in light phone; do
    awk '$1 == "overflow" { found = 1; if ($2 > 0) { print; bad = 1 } } END { exit bad || !found }' "$work/$layout" ||
      { grep '^wide' "$work/$layout"; return 1; }
  done
}

dark_is_dark() {
  note="$(head -n 1 "$work/light"), $(head -n 1 "$work/dark")"
  local light dark
  light=$(sed -n 's/background rgb(\([0-9]*\),.*/\1/p' "$work/light")
  dark=$(sed -n 's/background rgb(\([0-9]*\),.*/\1/p' "$work/dark")
  [ "$light" -gt 200 ] && [ "$dark" -lt 60 ]
}

screenshots() {
  local shot
  browse --window-size=1400,2400 --screenshot="$work/light.png" "file://$page" &&
    browse --window-size=1400,2400 --blink-settings=preferredColorScheme=0 --screenshot="$work/dark.png" "file://$page" &&
    FRAME=400 framed report.html >"$work/page/phone.html" &&
    browse --window-size=500,2400 --screenshot="$work/phone.png" "file://$work/page/phone.html" &&
    printed "$page" >"$work/page/print.html" &&
    browse --window-size=1047,2400 --screenshot="$work/print.png" "file://$work/page/print.html" || return
  for shot in light dark phone print; do
    # An empty page compresses to a few KB.
    [ "$(stat -c %s "$work/$shot.png")" -gt 50000 ] || return
  done
  ! cmp "$work/light.png" "$work/dark.png"
}

# Lists the page's requests, from the browser's log, which names the page that made each request. The
# browser's own requests are left out. No request leaves the machine, because no name is resolved.
requests_of() { # requests_of PAGE
  rm -f "$work/net.json"
  browse --log-net-log="$work/net.json" --host-resolver-rules="MAP * ~NOTFOUND" --screenshot="$work/again.png" \
    "file://$1" >"$work/browser.log" 2>&1 || { cat "$work/browser.log"; return 1; }
  grep -F 'SiteForCookies: {site=file://' "$work/net.json" | grep -oE '"url":"(https?|wss?|ftp):[^"]*"' | sort -u >"$work/requests"
  cat "$work/requests"
  [ -s "$work/net.json" ]
}

# A copy of the page with one request shows that requests are detected.
no_request_goes_out() {
  sed 's|</body>|<img src="http://mpiburn.invalid/x.png"></body>|' "$page" >"$work/page/asking.html"
  requests_of "$work/page/asking.html" && grep -q mpiburn.invalid "$work/requests" || return
  requests_of "$page" && [ ! -s "$work/requests" ]
}

check "a small sweep of real runs" a_sweep_is_run
check "the page, its tables and its plots are written" the_page_is_written
check "the page refers to nothing outside itself" it_needs_nothing_else
check "chromium lays it out in light" measured "$work/light" --window-size=1400,1000
check "chromium lays it out in dark" measured "$work/dark" --window-size=1400,1000 --blink-settings=preferredColorScheme=0
FRAME=400 check "chromium lays it out on a phone" measured "$work/phone" --window-size=500,2400
STYLE=printed check "chromium lays it out in print" measured "$work/print" --window-size=1047,1000
check "tables have the runs' numbers" tables_have_their_cells
check "the page begins with a card and the findings" the_page_begins_with_answers
check "tables fit 1,200 pixels" tables_fit
check "what scrolls on a phone says so" hints_are_where_it_scrolls
check "text has 11 pixels on a phone" text_is_legible "$work/phone"
check "text of plots has the page's size" plots_have_the_pages_text "$work/light"
check "text of plots has the page's size on a phone" plots_have_the_pages_text "$work/phone"
check "the accuracy is in view on a phone" the_accuracy_is_in_view
check "contents stay in view" contents_stay_in_view "$work/light"
check "contents stay in view on a phone" contents_stay_in_view "$work/phone"
check "print has the folded columns" print_has_all_columns
check "what is not shown is at the end" what_is_not_shown_is_at_the_end
check "every number links to its run" links_lead_to_runs
check "failed and incomplete runs are named" failures_are_named
check "every plot has a size" pictures_have_a_size "$work/light" 300
check "every plot has a size on a phone" pictures_have_a_size "$work/phone" 300
check "nothing is wider than the window" nothing_overflows
check "dark is dark" dark_is_dark
check "screenshots in light and dark, of a phone and of print" screenshots
check "the page makes no request" no_request_goes_out
[ -z "${KEEP-}" ] || { mkdir -p "$KEEP" && cp -r "$work"/*.png "$work/page" "$KEEP"; }
exit $failed
