// Where every rank's cell is: nodes as boxes, ranks as cells in them.

const HIGHEST = 440;
const HIGHEST_OF_MANY = 620; // pixels, where thousands of nodes need them
const LARGEST = { width: 104, height: 56 };
const SMALLEST = 3;

/** The columns in which a node's ranks fill rows evenly, at least as wide as high. */
function shapes(full) {
  const found = [];
  for (let columns = 1; columns <= full; columns++) {
    if (full % columns === 0 && columns * columns >= full) found.push(columns);
  }
  return found;
}

/** Choose the arrangement whose cells are largest; returns sizes and places in pixels. */
export function arrange(shown, perNode, width) {
  const nodes = Math.ceil(shown / perNode);
  const full = Math.min(perNode, shown);
  const gap = nodes > 512 ? 2 : nodes > 48 ? 6 : 12;
  const highest = nodes > 512 ? HIGHEST_OF_MANY : HIGHEST;
  const label = nodes <= 48 ? 18 : nodes <= 256 ? 11 : 0;
  let best = null;
  for (const columns of shapes(full)) {
    const rows = full / columns;
    for (let across = 1; across <= nodes; across++) {
      const down = Math.ceil(nodes / across);
      const cellWidth = Math.min(LARGEST.width, (width - gap * (across - 1)) / (across * columns));
      const room = (highest - (gap + label) * down) / (down * rows);
      const cellHeight = Math.min(LARGEST.height, Math.max(room, 0));
      // A cell is as good as its smaller side; wide ones hold text better than high ones.
      const score = Math.min(cellWidth / 1.6, cellHeight) - 0.001 * down * rows;
      if (!best || score > best.score) {
        best = { score, columns, rows, across, down, cellWidth, cellHeight };
      }
    }
  }
  const { columns, rows, across, down } = best;
  const whole = (size) => (size > 6 ? Math.floor(size) : Math.max(SMALLEST, Math.floor(size * 2) / 2));
  let cellWidth = whole(best.cellWidth);
  let cellHeight = whole(best.cellHeight);
  cellWidth = Math.min(cellWidth, Math.max(cellHeight * 2.4, SMALLEST));
  cellHeight = Math.min(cellHeight, Math.max(cellWidth * 1.3, SMALLEST));
  const box = { width: columns * cellWidth, height: rows * cellHeight };
  const xs = new Float32Array(shown);
  const ys = new Float32Array(shown);
  for (let rank = 0; rank < shown; rank++) {
    const node = Math.floor(rank / perNode);
    const place = rank % perNode;
    xs[rank] = (node % across) * (box.width + gap) + (place % columns) * cellWidth;
    ys[rank] = label + Math.floor(node / across) * (box.height + gap + label)
      + Math.floor(place / columns) * cellHeight;
  }
  return { nodes, perNode, columns, across, cellWidth, cellHeight, gap, label, box, xs, ys,
    width: across * (box.width + gap) - gap,
    height: Math.ceil(down * (box.height + gap + label) - gap) + 2 };
}

/** The rank at a place, or -1. */
export function rankAt(layout, x, y) {
  const stepX = layout.box.width + layout.gap;
  const stepY = layout.box.height + layout.gap + layout.label;
  const [across, down] = [Math.floor(x / stepX), Math.floor(y / stepY)];
  const [inX, inY] = [x - across * stepX, y - down * stepY - layout.label];
  if (across < 0 || across >= layout.across || down < 0 || inX >= layout.box.width) return -1;
  if (inY < 0 || inY >= layout.box.height) return -1;
  const place = Math.floor(inY / layout.cellHeight) * layout.columns
    + Math.floor(inX / layout.cellWidth);
  const rank = (down * layout.across + across) * layout.perNode + place;
  return place < layout.perNode && rank < layout.xs.length ? rank : -1;
}
