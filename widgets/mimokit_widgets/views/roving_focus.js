// One stop of the tabulator for many buttons; arrow keys move between them.

const MOVES = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

export class RovingFocus {
  constructor(host) {
    this.rows = [];
    host.addEventListener("keydown", (event) => this.key(event));
    host.addEventListener("focusin", (event) => {
      const place = this.placeOf(event.target);
      if (place) this.take(place);
    });
  }

  /** rows of buttons, null where there is none. */
  arrange(rows) {
    this.rows = rows;
    const all = rows.flat().filter(Boolean);
    all.forEach((button, at) => { button.tabIndex = at ? -1 : 0; });
  }

  placeOf(node) {
    for (const [row, buttons] of this.rows.entries()) {
      const column = buttons.indexOf(node);
      if (column >= 0) return [row, column];
    }
    return null;
  }

  take([row, column]) {
    for (const each of this.rows.flat()) if (each) each.tabIndex = -1;
    this.rows[row][column].tabIndex = 0;
  }

  key(event) {
    const move = MOVES[event.key];
    let place = move && this.placeOf(event.target);
    if (!place) return;
    event.preventDefault();
    event.stopPropagation();
    do {
      place = [place[0] + move[0], place[1] + move[1]];
    } while (this.rows[place[0]]?.[place[1]] === null);
    this.rows[place[0]]?.[place[1]]?.focus();
  }
}
